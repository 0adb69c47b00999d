-- Clusters of handwritten digits: Lloyd's algorithm, from the first ten images as centres.

CREATE OR REPLACE TENSOR points AS
SELECT d.i, d.p, d.val FROM 'examples/data/digits.npy' AS d(i, p);

CREATE OR REPLACE TENSOR centres AS SELECT x.i AS c, x.p, x.val FROM points AS x WHERE x.i < 10;

-- The nearest centre of each point: its number, and how far it is.
CREATE OR REPLACE VIEW nearest AS
WITH distance AS (
  SELECT x.i, m.c, SUM((x.val - m.val) * (x.val - m.val)) AS val
  FROM points AS x JOIN centres AS m USING (p) GROUP BY x.i, m.c)
SELECT i, ARG_MIN(c, val) AS c, MIN(val) AS far FROM distance GROUP BY i;

-- Each step moves the centres to the means of their points, and says how far points are from them.
FOR step IN range(25) DO
  UPDATE centres SET val = mean.val
  FROM (SELECT n.c, x.p, AVG(x.val) AS val
        FROM points AS x JOIN nearest AS n USING (i) GROUP BY n.c, x.p) AS mean
  WHERE mean.c = centres.c AND mean.p = centres.p;
  SELECT SUM(far) AS inertia FROM nearest;
END FOR;

-- How many images of each digit are in each cluster.
SELECT n.c AS cluster, l.val AS digit, COUNT(*) AS images
FROM nearest AS n JOIN 'examples/data/labels.npy' AS l(i) USING (i)
GROUP BY n.c, l.val;
