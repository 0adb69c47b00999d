-- product: w
WITH r AS (SELECT i, k, SUM(x.val * w.val) AS val FROM x JOIN w USING (j) GROUP BY i, k), loss
AS (SELECT SUM(val * val * val) AS val FROM r)
-- three: w
WITH loss AS (SELECT SUM(x.val * w.val * v.val) AS val FROM x JOIN w USING (j) JOIN v USING (j))
-- maps inside: w
WITH loss AS (SELECT SUM(GREATEST(x.val, 0) * w.val * w.val) AS val FROM x JOIN w USING (j))
-- distance: w
WITH r AS (SELECT i, k, SUM((x.val - w.val) * (x.val - w.val)) AS val FROM x JOIN w USING (j)
GROUP BY i, k), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- diagonal: square
WITH loss AS (SELECT SUM(val * val) AS val FROM square WHERE i = j)
-- transposed: square
WITH loss AS (SELECT SUM(a.val * b.val) AS val FROM square a JOIN square b ON a.i = b.j AND a.j
= b.i)
-- slice: x
WITH loss AS (SELECT SUM(val * val) AS val FROM x WHERE i BETWEEN 1 AND 2)
-- thin slice: line
WITH loss AS (SELECT SUM(val * val) AS val FROM line WHERE i = 2)
-- absent: x
WITH loss AS (SELECT SUM(a.val * b.val) AS val FROM (SELECT i, j, val FROM x WHERE val > 0) a
JOIN x b USING (i))
-- triangle: square
WITH r AS (SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM square a JOIN square b ON a.j = b.i
WHERE a.i <= b.j GROUP BY a.i, b.j), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- gather: x
WITH r AS (SELECT n, j, x.val * (n + 1) AS val FROM found JOIN x ON x.i = found.val), loss AS
(SELECT SUM(val * val * val) AS val FROM r)
-- gathered product: x
WITH r AS (SELECT n, k, SUM(x.val * w.val) AS val FROM found JOIN x ON x.i = found.val JOIN w ON
w.j = x.j GROUP BY n, k), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- through a gather: w
WITH r AS (SELECT n, k, SUM(x.val * w.val) AS val FROM found JOIN x ON x.i = found.val JOIN w ON
w.j = x.j GROUP BY n, k), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- outside: line
WITH r AS (SELECT n, line.val AS val FROM found JOIN line ON line.i = found.val + 7), loss AS
(SELECT SUM(val * val * val) AS val FROM r)
-- segments: line
WITH r AS (SELECT found.val AS g, SUM(line.val) AS val FROM line JOIN found ON line.i = found.n
GROUP BY found.val), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- blocks: line
WITH r AS (SELECT i // 2 AS g, SUM(val * val) AS val FROM line GROUP BY i // 2), loss AS (SELECT
SUM(val * val * val) AS val FROM r)
-- rotation: wide
WITH r AS (SELECT a.o, a.j, a.val * b.val AS val FROM wide a JOIN wide b ON b.o = (a.o + 5) % 12
AND a.j = b.j), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- convolution: line
WITH r AS (SELECT o, SUM(line.val * mask.val) AS val FROM range(7) r(o), mask, line WHERE line.i
= o + mask.d GROUP BY o), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- its mask: mask
WITH r AS (SELECT o, SUM(line.val * mask.val) AS val FROM range(7) r(o), mask, line WHERE line.i
= o + mask.d GROUP BY o), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- strides: picture
WITH r AS (SELECT p, q, SUM(val) AS val FROM range(3) a(p), range(2) b(q), picture WHERE i = 2 *
p + q GROUP BY p, q), loss AS (SELECT SUM(val * val * val) AS val FROM r)
-- heads: wide
WITH r AS (SELECT h, i, SUM(x.val * wide.val) AS val FROM x, wide, range(3) r(h), range(2) c(d)
WHERE wide.j = x.j AND wide.o = 4 + h * 2 + d GROUP BY h, i), loss AS (SELECT SUM(val * val *
val) AS val FROM r)
-- window: x
WITH r AS (SELECT i, j, val - AVG(val) OVER (PARTITION BY i) AS val FROM x), loss AS (SELECT
SUM(val * val * val) AS val FROM r)
-- softmax: x
WITH r AS (SELECT i, j, e / SUM(e) OVER (PARTITION BY i) AS val FROM (SELECT i, j, EXP(val -
MAX(val) OVER (PARTITION BY i)) AS e FROM x)), loss AS (SELECT SUM(val * val * val) AS val FROM
r)
-- correlated: x
WITH loss AS (SELECT SUM(x.val * (SELECT MAX(q.val) FROM x q WHERE q.i = x.i)) AS val FROM x)
-- having: x
WITH r AS (SELECT i, SUM(val) AS val FROM x GROUP BY i HAVING SUM(val) > 0), loss AS (SELECT
SUM(val * val * val) AS val FROM r)
-- broadcast: v
WITH loss AS (SELECT SUM(x.val * v.val) AS val FROM x, v)
-- einsum: w
WITH r AS (SELECT * FROM EINSUM('ij,jk,ij->ik', x, w, x)), loss AS (SELECT SUM(val * val * val)
AS val FROM r)
-- negative key: line
WITH r AS (SELECT i - 4 AS i, val FROM line), loss AS (SELECT SUM(val * val * val) AS val FROM
r)
-- empty: x
WITH loss AS (SELECT SUM(val) AS val FROM x WHERE i > 7)
-- two ways: w
WITH a AS (SELECT k, SUM(val) AS val FROM w GROUP BY k), loss AS (SELECT SUM(w.val * a.val) AS
val FROM w JOIN a USING (k))
