-- Two thin factors of the digits' pixels, from four fifths of them: image i has the taste u[i], pixel p
-- the traits v[p], and a grey is about their product. What was held back is predicted from it.
-- Alternating descent is not needed: one loss, the gradients by both factors, Adam.

CREATE OR REPLACE TENSOR x AS
SELECT d.i, d.p, d.val / 16 AS val FROM 'examples/data/digits.npy' AS d(i, p);

CREATE OR REPLACE TENSOR u AS
SELECT r.i, k.k, CAST(0.1 * SIN(1.7 * r.i + 3.1 * k.k * k.k) AS FLOAT) AS val, 0::FLOAT AS m, 0::FLOAT AS v
FROM range(1797) AS r(i), range(16) AS k(k);
CREATE OR REPLACE TENSOR t AS
SELECT p.p, k.k, CAST(0.1 * COS(2.3 * p.p + 1.3 * k.k * k.k) AS FLOAT) AS val, 0::FLOAT AS m, 0::FLOAT AS v
FROM range(64) AS p(p), range(16) AS k(k);

CREATE OR REPLACE VIEW miss AS
WITH guess AS (SELECT u.i, t.p, SUM(u.val * t.val) AS val FROM u JOIN t USING (k) GROUP BY u.i, t.p)
SELECT x.i, x.p, x.val - guess.val AS val, (7 * x.i + 3 * x.p) % 5 AS part FROM x JOIN guess USING (i, p);

FOR step IN range(300) DO
  WITH fit AS (SELECT SUM(val * val) AS val FROM miss WHERE part <> 0),
  size AS (SELECT SUM(val * val) AS val FROM u),
  loss AS (SELECT fit.val + 0.05 * size.val AS val FROM fit, size),
  gu AS (SELECT i, k, 0.9 * o.m + 0.1 * g.val AS m, 0.99 * o.v + 0.01 * g.val * g.val AS v
         FROM u AS o JOIN GRADIENT(loss, u) AS g USING (i, k)),
  gt AS (SELECT p, k, 0.9 * o.m + 0.1 * g.val AS m, 0.99 * o.v + 0.01 * g.val * g.val AS v
         FROM t AS o JOIN GRADIENT(loss, t) AS g USING (p, k)),
  s1 AS (UPDATE u SET val = u.val - adam(g.m, g.v, step + 1, 0.02, 0.9, 0.99), m = g.m, v = g.v
         FROM gu AS g WHERE g.i = u.i AND g.k = u.k),
  s2 AS (UPDATE t SET val = t.val - adam(g.m, g.v, step + 1, 0.02, 0.9, 0.99), m = g.m, v = g.v
         FROM gt AS g WHERE g.p = t.p AND g.k = t.k)
  SELECT SQRT(val / (SELECT COUNT(*) FROM miss WHERE part <> 0)) AS rmse FROM fit;
END FOR;

-- The error on what was held back, beside that of each pixel's mean.
WITH mean AS (SELECT p, AVG(val) AS val FROM x WHERE (7 * i + 3 * p) % 5 <> 0 GROUP BY p)
SELECT SQRT(AVG(miss.val * miss.val)) AS rmse,
       SQRT(AVG((x.val - mean.val) * (x.val - mean.val))) AS rmse_of_means
FROM miss JOIN x USING (i, p) JOIN mean USING (p) WHERE part = 0;
