-- A network with one hidden layer learns handwritten digits: mini-batches of 180 images, Adam.
-- Every third image is held back. Pixel 64 is 1 everywhere: its weights are the hidden layer's bias.

CREATE OR REPLACE MACRO noise(i, j) AS SIN(12.9898 * i + 78.233 * j) * 43758.5453;
CREATE OR REPLACE MACRO weight(i, j) AS CAST((noise(i, j) - FLOOR(noise(i, j)) - 0.5) / 4 AS FLOAT);

CREATE OR REPLACE TENSOR x (i DIM(1797), p DIM(65), val FLOAT) DEFAULT 1;
INSERT OR REPLACE INTO x SELECT d.i, d.p, d.val / 16 FROM 'examples/data/digits.npy' AS d(i, p);
CREATE OR REPLACE TENSOR y AS SELECT l.i, l.val FROM 'examples/data/labels.npy' AS l(i);

-- Each weight beside the means of its gradients and of their squares.
CREATE OR REPLACE TENSOR w1 AS SELECT p.p, h.h, weight(p.p, h.h) AS val, 0::FLOAT AS m, 0::FLOAT AS v
FROM range(65) AS p(p), range(128) AS h(h);
CREATE OR REPLACE TENSOR w2 AS SELECT h.h, c.c, weight(h.h, 99 - c.c) AS val, 0::FLOAT AS m, 0::FLOAT AS v
FROM range(128) AS h(h), range(10) AS c(c);

FOR step IN range(300) DO
  WITH hidden AS (
    SELECT x.i, w1.h, relu(SUM(x.val * w1.val)) AS val FROM x JOIN w1 USING (p)
    WHERE x.i BETWEEN (step % 10) * 180 AND (step % 10) * 180 + 179 AND x.i % 3 <> 1
    GROUP BY x.i, w1.h),
  score AS (SELECT i, c, SUM(a.val * w2.val) AS val FROM hidden AS a JOIN w2 USING (h) GROUP BY i, c),
  loss AS (SELECT AVG(-s.val) AS val
           FROM log_softmax(score, c) AS s JOIN y ON y.i = s.i AND y.val = s.c),
  g1 AS (SELECT p, h, 0.9 * w.m + 0.1 * g.val AS m, 0.999 * w.v + 0.001 * g.val * g.val AS v
         FROM w1 AS w JOIN GRADIENT(loss, w1) AS g USING (p, h)),
  g2 AS (SELECT h, c, 0.9 * w.m + 0.1 * g.val AS m, 0.999 * w.v + 0.001 * g.val * g.val AS v
         FROM w2 AS w JOIN GRADIENT(loss, w2) AS g USING (h, c)),
  s1 AS (UPDATE w1 SET val = w1.val - adam(g.m, g.v, step + 1, 0.005), m = g.m, v = g.v
         FROM g1 AS g WHERE g.p = w1.p AND g.h = w1.h),
  s2 AS (UPDATE w2 SET val = w2.val - adam(g.m, g.v, step + 1, 0.005), m = g.m, v = g.v
         FROM g2 AS g WHERE g.h = w2.h AND g.c = w2.c)
  SELECT val AS loss FROM loss;
END FOR;

WITH hidden AS (SELECT x.i, w1.h, relu(SUM(x.val * w1.val)) AS val FROM x JOIN w1 USING (p)
                WHERE x.i % 3 = 1 GROUP BY x.i, w1.h),
score AS (SELECT i, c, SUM(a.val * w2.val) AS val FROM hidden AS a JOIN w2 USING (h) GROUP BY i, c),
guess AS (SELECT i, ARG_MAX(c, val) AS val FROM score GROUP BY i)
SELECT AVG(IF(guess.val = y.val, 1, 0)) AS accuracy FROM guess JOIN y USING (i);
