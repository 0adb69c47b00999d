-- The nearest image in a metric that the data suggest: distance (x - q)ᵀ M (x - q), where M is the
-- inverse of the covariance within a digit. Every third image asks, the others are known.

CREATE OR REPLACE TENSOR x AS
SELECT d.i, d.p, d.val FROM 'examples/data/digits.npy' AS d(i, p);

CREATE OR REPLACE TENSOR y AS SELECT l.i, l.val FROM 'examples/data/labels.npy' AS l(i);

-- What is left of an image without the mean of its digit, and how its pixels go together.
CREATE OR REPLACE TENSOR a AS
WITH mean AS (
  SELECT y.val AS c, x.p, AVG(x.val) AS val FROM x JOIN y USING (i)
  WHERE x.i % 3 <> 1 GROUP BY y.val, x.p),
apart AS (
  SELECT x.i, x.p, x.val - mean.val AS val
  FROM x JOIN y USING (i) JOIN mean ON mean.c = y.val AND mean.p = x.p WHERE x.i % 3 <> 1)
SELECT u.p, v.p AS q, SUM(CAST(u.val AS DOUBLE) * v.val) / 1198 + IF(u.p = v.p, 2, 0) AS val
FROM apart AS u JOIN apart AS v USING (i) GROUP BY u.p, v.p;

-- Its inverse by Newton's method: M becomes 2M - MAM, from a multiple of the identity.
CREATE OR REPLACE TENSOR m AS
SELECT r.p, s.q, IF(r.p = s.q, 1 / (SELECT SUM(val) FROM a WHERE p = q), 0) AS val
FROM range(64) AS r(p), range(64) AS s(q);

FOR step IN range(20) DO
  UPDATE m SET val = 2 * m.val - mam.val
  FROM (SELECT l.p, r.q, SUM(l.val * a.val * r.val) AS val
        FROM m AS l, a, m AS r WHERE l.q = a.p AND a.q = r.p GROUP BY l.p, r.q) AS mam
  WHERE mam.p = m.p AND mam.q = m.q;
  SELECT MAX(ABS(val)) AS error
  FROM (SELECT a.p, m.q, SUM(a.val * m.val) - IF(a.p = m.q, 1, 0) AS val
        FROM a, m WHERE a.q = m.p GROUP BY a.p, m.q);
END FOR;

-- Of each image that asks, the nearest one that is known, and how often it shows the same digit.
WITH moved AS (SELECT x.i, m.q, SUM(x.val * m.val) AS val FROM x, m WHERE x.p = m.p GROUP BY x.i, m.q),
norm AS (SELECT x.i, SUM(x.val * v.val) AS val FROM x JOIN moved AS v ON v.i = x.i AND v.q = x.p GROUP BY x.i),
pairs AS (SELECT v.i, k.i AS j, SUM(v.val * k.val) AS val FROM moved AS v, x AS k
         WHERE v.q = k.p AND v.i % 3 = 1 AND k.i % 3 <> 1 GROUP BY v.i, k.i),
nearest AS (SELECT o.i, ARG_MIN(o.j, norm.val - 2 * o.val) AS val
            FROM pairs AS o JOIN norm ON norm.i = o.j GROUP BY o.i)
SELECT AVG(IF(known.val = truth.val, 1, 0)) AS accuracy
FROM nearest AS n JOIN y AS known ON known.i = n.val JOIN y AS truth ON truth.i = n.i;
