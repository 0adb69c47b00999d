-- Zachary's karate club: how far apart are two members, counting at most two friendships?
-- Joining edges end to end is a matrix product in which + multiplies and MIN adds.

-- One step: 0 to oneself, 1 to a friend, and inf (which is 1 / 0) to everyone else.
CREATE OR REPLACE TENSOR step AS
SELECT g.i, g.j, CASE WHEN g.i = g.j THEN 0 WHEN g.val > 0 THEN 1 ELSE 1 / 0 END AS val
FROM 'examples/data/karate.npy' AS g(i, j);

CREATE OR REPLACE TENSOR distance AS
SELECT a.i, b.j, MIN(a.val + b.val) AS val
FROM step AS a JOIN step AS b ON a.j = b.i
GROUP BY a.i, b.j;

-- Ordered pairs of members by distance; the rest are farther than two steps apart.
SELECT
  COUNT(*) FILTER (WHERE val = 0) AS themselves,
  COUNT(*) FILTER (WHERE val = 1) AS friends,
  COUNT(*) FILTER (WHERE val = 2) AS friends_of_friends,
  COUNT(*) FILTER (WHERE val > 2) AS farther
FROM distance;

-- From the instructor (member 0) to everyone.
SELECT j AS member, val AS steps FROM distance WHERE i = 0;
