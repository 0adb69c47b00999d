-- Which digit does an image show? Softmax of one linear map, by gradient descent with momentum.
-- Every third image is held back.

CREATE OR REPLACE TENSOR x AS
SELECT d.i, d.p, d.val / 16 AS val FROM 'examples/data/digits.npy' AS d(i, p);

CREATE OR REPLACE TENSOR y AS SELECT l.i, l.val FROM 'examples/data/labels.npy' AS l(i);

CREATE OR REPLACE TENSOR w (p DIM(64), c DIM(10), val FLOAT) DEFAULT 0;
CREATE OR REPLACE TENSOR v (p DIM(64), c DIM(10), val FLOAT) DEFAULT 0;

CREATE OR REPLACE VIEW score AS
SELECT x.i, w.c, SUM(x.val * w.val) AS val FROM x JOIN w USING (p) GROUP BY x.i, w.c;

FOR step IN range(200) DO
  WITH likely AS (SELECT * FROM log_softmax((SELECT * FROM score WHERE i % 3 <> 1), c)),
  loss AS (
    SELECT AVG(-s.val) AS val FROM likely AS s JOIN y ON y.i = s.i AND y.val = s.c),
  speed AS (SELECT v.p, v.c, 0.9 * v.val + g.val AS val FROM v JOIN GRADIENT(loss, w) AS g USING (p, c)),
  s1 AS (UPDATE v SET val = s.val FROM speed AS s WHERE s.p = v.p AND s.c = v.c),
  s2 AS (UPDATE w SET val = w.val - 0.5 * s.val FROM speed AS s WHERE s.p = w.p AND s.c = w.c)
  SELECT val AS loss FROM loss;
END FOR;

SELECT AVG(IF(g.val = y.val, 1, 0)) AS accuracy
FROM (SELECT i, ARG_MAX(c, val) AS val FROM score WHERE i % 3 = 1 GROUP BY i) AS g JOIN y USING (i);
