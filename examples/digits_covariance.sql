-- Handwritten digits: how the 64 pixels vary together over the 1797 images.

CREATE OR REPLACE TENSOR digits AS
SELECT d.i, d.p, d.val FROM 'examples/data/digits.npy' AS d(i, p);

CREATE OR REPLACE TENSOR centred AS
WITH mean AS (SELECT p, AVG(val) AS val FROM digits GROUP BY p)
SELECT digits.i, digits.p, digits.val - mean.val AS val
FROM digits JOIN mean USING (p);

CREATE OR REPLACE TENSOR covariance AS
SELECT a.p, b.p AS q, SUM(a.val * b.val) / (COUNT(*) - 1) AS val
FROM centred AS a JOIN centred AS b USING (i)
GROUP BY a.p, b.p;

-- The trace is the total variance.
SELECT SUM(val) AS trace FROM covariance WHERE p = q;

SELECT p, q, val FROM covariance;
