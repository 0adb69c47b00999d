-- order, limit, distinct
SELECT i, j, val FROM x ORDER BY val DESC LIMIT 3
SELECT i, j, val FROM x ORDER BY val DESC, i, j LIMIT 3 OFFSET 2
SELECT i, j, val FROM x ORDER BY i DESC, j
SELECT i, j FROM x ORDER BY 2 DESC, 1
SELECT * FROM x ORDER BY ALL
SELECT * FROM x ORDER BY ALL DESC LIMIT 5
SELECT i AS a, val AS b FROM x ORDER BY b DESC, a
SELECT i AS a, val * 2 AS b FROM x ORDER BY b / 2 DESC, a + 1
SELECT i, val FROM x WHERE j = 1 ORDER BY -val
SELECT val FROM x ORDER BY i * 10 + j
SELECT val FROM x ORDER BY x.j, x.i
SELECT -i AS i, val FROM x WHERE j = 0 ORDER BY i
SELECT -i AS i, val FROM x WHERE j = 0 ORDER BY i + 1
SELECT -i AS i, val FROM x WHERE j = 0 ORDER BY x.i
SELECT DISTINCT i FROM x ORDER BY i
SELECT DISTINCT i % 2 AS p FROM x ORDER BY p DESC
SELECT DISTINCT val > 2 AS big, i FROM x ORDER BY 1, 2
SELECT DISTINCT ON (i) i, j, val FROM x ORDER BY i, val DESC
SELECT i, val FROM x ORDER BY val LIMIT (SELECT COUNT(*) FROM y WHERE k = 0)
SELECT i, SUM(val) AS s FROM x GROUP BY i ORDER BY s DESC
SELECT i, SUM(val) FROM x GROUP BY i ORDER BY SUM(val) DESC
SELECT i, SUM(val) AS s FROM x GROUP BY ALL ORDER BY ALL
SELECT i, SUM(val) AS s FROM x GROUP BY i ORDER BY MAX(val) - MIN(val), i
SELECT i, SUM(val) AS s FROM x GROUP BY i ORDER BY COUNT(*), i DESC LIMIT 2
SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY x.i, y.k ORDER BY v DESC, k LIMIT 4
SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x, y WHERE x.j = y.j GROUP BY ALL ORDER BY x.i DESC, y.k
SELECT COUNT(*) FROM x ORDER BY 1
SELECT i, j, val FROM x WHERE val > 1 ORDER BY val NULLS FIRST, i, j
SELECT i, j FROM x ORDER BY i DESC NULLS LAST, j ASC LIMIT 50 PERCENT
FROM x ORDER BY val DESC, i LIMIT 2
FROM x SELECT i, SUM(val) AS s GROUP BY i ORDER BY i
SELECT i, j FROM x ORDER BY j, i DESC OFFSET 7
SELECT x.i, x.i FROM x WHERE j = 0 ORDER BY 1
SELECT DISTINCT x.j FROM x JOIN y USING (j) ORDER BY x.j DESC
SELECT i AS "a b", val AS "Val" FROM x WHERE j = 2 ORDER BY "a b" DESC
-- text
SELECT 'row ' || i AS name, SUM(val) AS s FROM x GROUP BY i ORDER BY i
SELECT upper('r' || i) AS u, SUM(val) + 1 AS t FROM x GROUP BY i HAVING SUM(val) > 2 ORDER BY t
SELECT i::VARCHAR AS t, val FROM x WHERE j = 0 ORDER BY t DESC
SELECT concat(i, ':', j) AS k, val FROM x WHERE val > 1 ORDER BY k
SELECT printf('%d-%d', i, j) AS k FROM x WHERE i = 1 ORDER BY k
SELECT string_agg(j::VARCHAR, ',' ORDER BY j) AS js FROM x WHERE val > 0 GROUP BY i ORDER BY js
SELECT i, string_agg('v' || j, '' ORDER BY j DESC) AS s, SUM(val) AS t FROM x GROUP BY i ORDER BY i
SELECT length('abc' || i) AS l, COUNT(*) AS n FROM x GROUP BY i ORDER BY i
SELECT CASE WHEN val > 2 THEN 'big' ELSE 'small' END AS size, COUNT(*) AS n FROM x GROUP BY size ORDER BY size
SELECT CASE WHEN SUM(val) > 4 THEN 'big' ELSE 'small' END AS size, i FROM x GROUP BY i ORDER BY i
SELECT i || '/' || COUNT(*) AS r FROM x GROUP BY i ORDER BY r
SELECT left('hello', i + 1) AS t, MIN(val) AS m FROM x GROUP BY i ORDER BY i
SELECT format('{:.2f}', SUM(val)::DOUBLE) AS f, i FROM x GROUP BY i ORDER BY i
SELECT 'total' AS what, SUM(val) AS v FROM x
SELECT 'n = ' || COUNT(*) AS t FROM x WHERE i > 100
SELECT regexp_replace(i::VARCHAR, '\d', 'd') AS d, MAX(val) FROM x GROUP BY i ORDER BY i
SELECT name, val FROM labels JOIN x ON x.i = labels.row WHERE x.j = 1 ORDER BY name
SELECT name FROM labels WHERE name LIKE 'b%' ORDER BY name
SELECT lower(name) AS n, row FROM labels WHERE row IN (SELECT i FROM x WHERE val > 3) ORDER BY n
-- joins of tensors and tables
SELECT l.name, x.j, x.val FROM x JOIN labels l ON x.i = l.row ORDER BY l.name, x.j
SELECT l.name, SUM(x.val) AS s FROM x JOIN labels l ON x.i = l.row GROUP BY l.name ORDER BY s DESC
SELECT l.name, SUM(x.val * y.val) AS s FROM x JOIN y USING (j) JOIN labels l ON x.i = l.row GROUP BY l.name ORDER BY l.name
SELECT l.name, p.s FROM labels l JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) p ON p.i = l.row ORDER BY p.s
SELECT l.name, p.s FROM labels l LEFT JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) p ON p.i = l.row ORDER BY l.name
SELECT l.name, p.s FROM labels l RIGHT JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) p ON p.i = l.row ORDER BY p.s
SELECT l.name, p.s FROM labels l FULL JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) p ON p.i = l.row + 1 ORDER BY ALL
SELECT x.i, y.k FROM x LEFT JOIN y ON x.j = y.j AND y.val > 1 WHERE x.i = 0 ORDER BY ALL
SELECT x.i, x.j, y.val FROM x RIGHT JOIN y ON x.i = y.j AND x.j = y.k ORDER BY ALL
SELECT x.i, y.j FROM x FULL OUTER JOIN y ON x.val = y.val ORDER BY ALL
SELECT a.i, b.i AS bi FROM x a LEFT JOIN x b ON a.val < b.val AND b.j = 0 WHERE a.j = 0 ORDER BY ALL
SELECT l.name, e.dst FROM edges e JOIN labels l ON l.row = e.src ORDER BY ALL
SELECT e.dst, SUM(x.val) AS s FROM edges e JOIN x ON x.i = e.src WHERE x.j = 0 GROUP BY e.dst ORDER BY e.dst
SELECT e.dst, x.j, SUM(x.val * e.w) AS s FROM edges e JOIN x ON x.i = e.src GROUP BY ALL ORDER BY ALL
SELECT x.i, x.val FROM x SEMI JOIN labels ON labels.row = x.i WHERE j = 0 ORDER BY i
SELECT x.i, x.val FROM x ANTI JOIN labels ON labels.row = x.i WHERE j = 0 ORDER BY i
SELECT x.i, l.name FROM x CROSS JOIN labels l WHERE x.j = 0 AND x.i < 1 ORDER BY l.name
SELECT a.i, a.s, b.s AS t FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) a POSITIONAL JOIN (SELECT 1 AS s) b ORDER BY a.i NULLS LAST
SELECT l.row, x.i FROM labels l ASOF JOIN (SELECT i, val FROM x WHERE j = 0) x ON l.row >= x.i ORDER BY ALL
SELECT l.name, x.val FROM labels l, x WHERE x.i = l.row AND x.j = length(l.name) % 4 ORDER BY ALL
SELECT x.i FROM x JOIN (VALUES (0), (2)) v(r) ON x.i = v.r WHERE x.j = 0 ORDER BY 1
SELECT * FROM (VALUES (0, 'zero'), (1, 'one')) v(i, t) JOIN x USING (i) WHERE j < 2 ORDER BY i, j
SELECT * FROM labels NATURAL JOIN (SELECT i AS row, SUM(val) AS s FROM x GROUP BY i) t ORDER BY row
SELECT x.i, l.name FROM x JOIN labels l ON x.i = l.row AND l.name <> 'beta' WHERE x.j = 3 ORDER BY 1
SELECT l.name, t.v FROM labels l JOIN LATERAL (SELECT MAX(val) AS v FROM x WHERE x.i = l.row) t ON TRUE ORDER BY ALL
SELECT x.i, t.d FROM x, LATERAL (SELECT x.val * 2 AS d) t WHERE x.j = 0 ORDER BY 1
SELECT a.i, b.name FROM x a JOIN labels b ON b.row BETWEEN a.i AND a.i + 1 WHERE a.j = 0 ORDER BY ALL
SELECT d.day, x.val FROM days d JOIN x ON x.i = d.n AND x.j = 0 ORDER BY d.day
SELECT * FROM labels l JOIN x AS t(a, b, c) ON l.row = t.a WHERE b = 1 ORDER BY a
SELECT t.a, t.c FROM x t(a, b, c) WHERE t.b = 2 ORDER BY t.c DESC
SELECT count(*) FROM x, y, labels
-- set operations
SELECT i FROM x UNION SELECT j FROM y ORDER BY 1
SELECT i, val FROM x UNION ALL SELECT j, val FROM y ORDER BY 1, 2
SELECT i FROM x EXCEPT SELECT k FROM y ORDER BY 1
SELECT i FROM x INTERSECT SELECT k FROM y ORDER BY 1
SELECT i FROM x WHERE j < 2 EXCEPT ALL SELECT k FROM y ORDER BY 1
SELECT i FROM x INTERSECT ALL SELECT j FROM y ORDER BY 1
(SELECT i, val FROM x ORDER BY val DESC LIMIT 1) UNION ALL (SELECT j, val FROM y ORDER BY val LIMIT 1) ORDER BY 1, 2
SELECT i, SUM(val) AS s FROM x GROUP BY i UNION ALL SELECT NULL, SUM(val) FROM x ORDER BY 1 NULLS LAST
SELECT 'x' AS t, COUNT(*) AS n FROM x UNION ALL SELECT 'y', COUNT(*) FROM y ORDER BY t
SELECT i AS a FROM x UNION BY NAME SELECT k AS b FROM y ORDER BY ALL
SELECT * FROM (SELECT i FROM x UNION SELECT row FROM labels) u ORDER BY 1
SELECT SUM(v) FROM (SELECT val AS v FROM x UNION ALL SELECT val FROM y) t
SELECT i FROM x WHERE val > 2 UNION SELECT row FROM labels WHERE name > 'b' ORDER BY i DESC LIMIT 3
((SELECT i FROM x) UNION (SELECT k FROM y)) EXCEPT (SELECT 1) ORDER BY 1
SELECT name FROM labels UNION SELECT 'row' || i FROM x ORDER BY 1
VALUES (1, 'a'), (2, 'b')
SELECT * FROM (VALUES (1, 2.5), (2, 3.5)) t(a, b) ORDER BY a
-- windows
SELECT i, j, ROW_NUMBER() OVER (PARTITION BY i ORDER BY val DESC) AS r FROM x ORDER BY i, r, j
SELECT i, j, RANK() OVER (ORDER BY val) AS r FROM x ORDER BY r, i, j
SELECT i, j, DENSE_RANK() OVER (PARTITION BY j ORDER BY val) AS r FROM x ORDER BY ALL
SELECT i, j, LAG(val) OVER (PARTITION BY i ORDER BY j) AS p FROM x ORDER BY i, j
SELECT i, j, LEAD(val, 1, 0) OVER (PARTITION BY i ORDER BY j) AS p FROM x ORDER BY i, j
SELECT i, j, SUM(val) OVER (PARTITION BY i ORDER BY j) AS c FROM x ORDER BY i, j
SELECT i, j, SUM(val) OVER (PARTITION BY i ORDER BY j ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS c FROM x ORDER BY i, j
SELECT i, j, AVG(val) OVER (ORDER BY i, j ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS c FROM x ORDER BY i, j
SELECT i, SUM(val) AS s, RANK() OVER (ORDER BY SUM(val) DESC) AS r FROM x GROUP BY i ORDER BY r
SELECT i, SUM(val) AS s, SUM(SUM(val)) OVER () AS total FROM x GROUP BY i ORDER BY i
SELECT i, SUM(val) / SUM(SUM(val)) OVER () AS share FROM x GROUP BY i ORDER BY i
SELECT i, LAG(SUM(val)) OVER (ORDER BY i) AS before FROM x GROUP BY i ORDER BY i
SELECT i, j, val FROM x QUALIFY ROW_NUMBER() OVER (PARTITION BY i ORDER BY val DESC, j) = 1 ORDER BY i
SELECT i, SUM(val) AS s FROM x GROUP BY i QUALIFY RANK() OVER (ORDER BY SUM(val)) <= 2 ORDER BY i
SELECT i, j, FIRST_VALUE(val) OVER w AS f, LAST_VALUE(val) OVER w AS l FROM x WINDOW w AS (PARTITION BY i ORDER BY j) ORDER BY i, j
SELECT i, NTILE(2) OVER (ORDER BY i) AS t FROM x WHERE j = 0 ORDER BY i
SELECT i, j, PERCENT_RANK() OVER (PARTITION BY i ORDER BY val) AS p FROM x ORDER BY i, j
SELECT i, val - AVG(val) OVER (PARTITION BY i) AS d, j FROM x ORDER BY i, j
SELECT i, MAX(val) OVER (PARTITION BY i) AS m FROM x WHERE j < 2 ORDER BY ALL
SELECT l.name, x.j, RANK() OVER (PARTITION BY l.name ORDER BY x.val) AS r FROM x JOIN labels l ON l.row = x.i ORDER BY ALL
SELECT i, COUNT(*) OVER () AS n FROM x GROUP BY i ORDER BY i
-- HAVING
SELECT i, SUM(val) AS s FROM x GROUP BY i HAVING SUM(val) > 3 ORDER BY i
SELECT i FROM x GROUP BY i HAVING COUNT(*) FILTER (WHERE val > 1) > 1 ORDER BY i
SELECT j, AVG(val) AS a FROM x GROUP BY j HAVING MAX(val) > 2 AND MIN(val) < 1 ORDER BY a DESC
SELECT i, SUM(val) AS s FROM x GROUP BY i HAVING s > 3 ORDER BY s
SELECT l.name FROM labels l JOIN x ON x.i = l.row GROUP BY l.name HAVING SUM(x.val) > 2 ORDER BY 1
SELECT i, COUNT(DISTINCT val) AS d FROM x GROUP BY i ORDER BY i
SELECT COUNT(DISTINCT val) FROM x
SELECT i, SUM(DISTINCT val) AS d FROM x GROUP BY i ORDER BY i
SELECT i, COUNT(DISTINCT j), SUM(val) FROM x GROUP BY i ORDER BY i
SELECT i FROM x GROUP BY i HAVING bool_or(val > 3) ORDER BY i DESC
-- aggregates DuckDB alone has
SELECT i, MEDIAN(val) AS m FROM x GROUP BY i ORDER BY i
SELECT i, quantile_cont(val, 0.25) AS q FROM x GROUP BY i ORDER BY i
SELECT i, list(val ORDER BY j) AS l FROM x GROUP BY i ORDER BY i
SELECT i, list(j ORDER BY val DESC, j)[1] AS best FROM x GROUP BY i ORDER BY i
SELECT i, first(val ORDER BY j) AS f, last(val ORDER BY j) AS l FROM x GROUP BY i ORDER BY i
SELECT i, mode(val) AS m FROM x WHERE j = 0 GROUP BY i ORDER BY i
SELECT corr(x.val, y.val) FROM x JOIN y ON x.i = y.k AND x.j = y.j
SELECT covar_pop(i, val) FROM x
SELECT regr_slope(val, j) AS slope, i FROM x GROUP BY i ORDER BY i
SELECT i, histogram(val > 2) AS h FROM x GROUP BY i ORDER BY i
SELECT bit_xor(i) FROM x WHERE j = 0
SELECT kurtosis(val) IS NULL AS n FROM x WHERE i = 0
SELECT approx_count_distinct(i) FROM x
SELECT i, max(val, 2) AS top FROM x GROUP BY i ORDER BY i
SELECT i, arg_max(j, val, 2) AS at FROM x WHERE i = 2 GROUP BY i
SELECT any_value(i) FROM x WHERE i = 1
SELECT i, SUM(val) AS s, MEDIAN(val) AS m FROM x GROUP BY i ORDER BY i
SELECT i // 2 AS g, MEDIAN(val) AS m FROM x GROUP BY g ORDER BY g
-- grouping
SELECT i, j, SUM(val) AS s FROM x GROUP BY ROLLUP (i, j) ORDER BY ALL
SELECT i, j, SUM(val) AS s FROM x GROUP BY CUBE (i, j) ORDER BY ALL
SELECT i, j, SUM(val) AS s FROM x GROUP BY GROUPING SETS ((i), (j), ()) ORDER BY ALL
SELECT i, GROUPING(i) AS g, SUM(val) AS s FROM x GROUP BY ROLLUP (i) ORDER BY ALL
SELECT val > 2 AS big, COUNT(*) AS n FROM x GROUP BY 1 ORDER BY 1
SELECT val, COUNT(*) AS n FROM x GROUP BY val ORDER BY n DESC, val LIMIT 3
SELECT round(val) AS r, SUM(i) AS s FROM x GROUP BY r ORDER BY r
SELECT i % 2 AS p, upper('p' || (i % 2)) AS t, SUM(val) AS s FROM x GROUP BY i % 2 ORDER BY p
SELECT i + 1 AS n, 'r' || (i + 1) AS t, SUM(val) AS s FROM x GROUP BY i + 1 ORDER BY 1
SELECT x.i, 'r' || x.i AS t, SUM(val) AS s FROM x GROUP BY x.i ORDER BY x.i
SELECT i, 'r' || x.i AS t, SUM(x.val) AS s FROM x GROUP BY i ORDER BY t DESC
SELECT x.i AS a, 'r' || i AS t, SUM(val) AS s FROM x GROUP BY 1 ORDER BY a
SELECT 'r' || i AS t, SUM(val) AS s FROM x GROUP BY t ORDER BY t
SELECT length(name) AS l, COUNT(*) AS n FROM labels GROUP BY l ORDER BY l
-- subqueries
SELECT i, val FROM x WHERE val = (SELECT MAX(val) FROM x) ORDER BY i
SELECT i, val FROM x WHERE val IN (SELECT val FROM y) ORDER BY i, j
SELECT i, val FROM x WHERE i NOT IN (SELECT row FROM labels) ORDER BY i, j
SELECT name FROM labels WHERE EXISTS (SELECT 1 FROM x WHERE x.i = labels.row AND x.val > 3) ORDER BY name
SELECT name FROM labels WHERE NOT EXISTS (SELECT 1 FROM x WHERE x.i = labels.row) ORDER BY name
SELECT name, (SELECT SUM(val) FROM x WHERE x.i = labels.row) AS s FROM labels ORDER BY name
SELECT name, (SELECT SUM(x.val * y.val) FROM x JOIN y USING (j)) AS s FROM labels ORDER BY name
SELECT i, (SELECT COUNT(*) FROM y WHERE y.val > x.val) AS n FROM x WHERE j = 0 ORDER BY i
SELECT i, j FROM x WHERE val > (SELECT AVG(val) FROM x b WHERE b.i = x.i) ORDER BY i, j
SELECT i, j FROM x WHERE val >= ALL (SELECT val FROM y) ORDER BY i, j
SELECT i, j FROM x WHERE val = ANY (SELECT val FROM y WHERE k = 1) ORDER BY i, j
SELECT i, j FROM x WHERE (i, j) IN (SELECT j, k FROM y) ORDER BY i, j
SELECT s FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i ORDER BY s DESC LIMIT 1) t
SELECT MAX(s) FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) t WHERE i IN (SELECT row FROM labels)
SELECT t.name, t.s FROM (SELECT l.name, SUM(x.val) AS s FROM x JOIN labels l ON l.row = x.i GROUP BY l.name) t ORDER BY t.s
SELECT a.i, a.s FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) a WHERE a.s > (SELECT AVG(val) * 3 FROM x) ORDER BY a.i
SELECT name FROM labels WHERE row = (SELECT arg_max(i, val) FROM x) ORDER BY 1
SELECT name, row IN (SELECT i FROM x WHERE val > 3) AS has FROM labels ORDER BY name
SELECT (SELECT name FROM labels WHERE row = x.i) AS name, SUM(val) AS s FROM x GROUP BY x.i ORDER BY s
SELECT COUNT(*) FROM (SELECT DISTINCT i FROM x WHERE val > 1) t
SELECT list_sort(ARRAY(SELECT i FROM x WHERE j = 0)) AS a
-- CTE
WITH a AS (SELECT i, SUM(val) AS s FROM x GROUP BY i) SELECT * FROM a ORDER BY s DESC
WITH a AS (SELECT i, SUM(val) AS s FROM x GROUP BY i), b AS (SELECT 'n' || s AS n FROM a) SELECT * FROM b ORDER BY n
WITH a AS (SELECT i, SUM(val) AS s FROM x GROUP BY i), b AS (SELECT MAX(s) AS m FROM a) SELECT a.i, a.s / b.m AS r FROM a, b ORDER BY a.i
WITH a AS (SELECT i, val FROM x WHERE j = 0), unused AS (SELECT nothing FROM labels2) SELECT i FROM a ORDER BY i
WITH a(p, q) AS (SELECT i, SUM(val) FROM x GROUP BY i) SELECT l.name, a.q FROM a JOIN labels l ON l.row = a.p ORDER BY l.name
WITH a AS MATERIALIZED (SELECT i, SUM(val) AS s FROM x GROUP BY i) SELECT s FROM a ORDER BY s
WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT r.n, x.val FROM r JOIN x ON x.i = r.n AND x.j = 0 ORDER BY n
WITH RECURSIVE x AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM x WHERE i < 2) SELECT * FROM x ORDER BY i
WITH RECURSIVE p AS (SELECT src, dst, 1 AS d FROM edges UNION ALL SELECT p.src, e.dst, d + 1 FROM p JOIN edges e ON e.src = p.dst WHERE d < 3) SELECT src, dst, MIN(d) AS d FROM p GROUP BY ALL ORDER BY ALL
WITH x AS (SELECT row AS i, name FROM labels) SELECT i, name FROM x ORDER BY i
WITH x AS (SELECT row AS i FROM labels), z AS (SELECT i FROM x) SELECT COUNT(*) FROM z
WITH a AS (SELECT i FROM x), b AS (WITH a AS (SELECT k AS i FROM y) SELECT DISTINCT i FROM a) SELECT (SELECT COUNT(*) FROM a) AS n, i FROM b ORDER BY i
WITH w AS (SELECT i, j, val FROM x WHERE val > 1) SELECT w.i, l.name FROM w JOIN labels l ON l.row = w.i ORDER BY ALL
WITH s AS (SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY x.i, y.k) SELECT k, list(v ORDER BY i) AS vs FROM s GROUP BY k ORDER BY k
WITH s AS (SELECT i, SUM(val) AS v FROM x GROUP BY i) SELECT i, v FROM s UNION ALL SELECT -1, SUM(v) FROM s ORDER BY 1
SELECT * FROM (WITH a AS (SELECT i, MAX(val) AS m FROM x GROUP BY i) SELECT * FROM a ORDER BY m LIMIT 2) t ORDER BY i
-- types and functions DuckDB alone has
SELECT val::DECIMAL(6, 2) AS d FROM x WHERE i = 1 ORDER BY d
SELECT SUM(val)::DECIMAL(8, 1) AS d, i FROM x GROUP BY i ORDER BY i
SELECT DATE '2026-01-01' + i::INTEGER AS d, SUM(val) AS s FROM x GROUP BY i ORDER BY d
SELECT day + INTERVAL 1 DAY AS d, n FROM days ORDER BY n
SELECT extract(year FROM day) AS y, COUNT(*) AS n FROM days GROUP BY y ORDER BY y
SELECT strftime(day, '%Y-%m') AS m, SUM(x.val) AS s FROM days JOIN x ON x.i = days.n GROUP BY m ORDER BY m
SELECT [i, j] AS l FROM x WHERE val > 3 ORDER BY l
SELECT {'i': i, 'v': val} AS s FROM x WHERE j = 0 ORDER BY i
SELECT list_transform([1, 2, 3], lambda e: e * i) AS l FROM x WHERE j = 0 ORDER BY i
SELECT unnest([i, i + 10]) AS u FROM x WHERE j = 0 ORDER BY u
SELECT unnest(range(i)) AS u, i FROM x WHERE j = 0 ORDER BY ALL
SELECT try_cast('a' AS INTEGER) AS n, i FROM x WHERE j = 0 ORDER BY i
SELECT i << 1 AS s, ~i AS n, i & 1 AS a FROM x WHERE j = 0 ORDER BY i
SELECT gcd(i, 6) AS g, factorial(i::INTEGER) AS f FROM x WHERE j = 0 ORDER BY i
SELECT i = 1 OR NULL AS b FROM x WHERE j = 0 ORDER BY i
SELECT even(val) AS e FROM x WHERE i = 0 ORDER BY ALL
SELECT i::HUGEINT * 10 AS h FROM x WHERE j = 0 ORDER BY h
SELECT hash(i) = hash(i) AS h FROM x WHERE j = 0
SELECT typeof(name) AS t FROM labels LIMIT 1
SELECT coalesce(l.name, 'none') AS n, x.i FROM x LEFT JOIN labels l ON l.row = x.i WHERE x.j = 0 ORDER BY x.i
SELECT nullif(name, 'beta') AS n FROM labels ORDER BY row
SELECT ifnull(SUM(val), 0) AS s FROM x WHERE i > 50
SELECT greatest(name, 'b') AS g FROM labels ORDER BY g
SELECT i, CASE i WHEN 0 THEN 'zero' WHEN 1 THEN 'one' END AS w FROM x WHERE j = 0 ORDER BY i
SELECT COLUMNS('.*') FROM x WHERE i = 0 ORDER BY j
SELECT * EXCLUDE (val) FROM x WHERE i = 0 ORDER BY j
SELECT * REPLACE (val * 2 AS val) FROM x WHERE i = 0 ORDER BY j
SELECT max(COLUMNS(*)) FROM x
SELECT x FROM x WHERE i = 0 AND j = 0
SELECT count(*) FILTER (WHERE name > 'b') AS n FROM labels
SELECT i IS DISTINCT FROM 1 AS d FROM x WHERE j = 0 ORDER BY i
SELECT sum(val) FILTER (WHERE i IN (SELECT row FROM labels)) AS s FROM x
SELECT 1 AS one, 'a' AS a, NULL AS n, TRUE AS t
SELECT i, val FROM x WHERE i::VARCHAR = '1' ORDER BY j
SELECT i, val FROM x WHERE val BETWEEN 1 AND 2 AND 'a' < 'b' ORDER BY ALL
-- pivots and others
PIVOT x ON j IN (0, 1) USING SUM(val) GROUP BY i ORDER BY i
SELECT * FROM (PIVOT x ON i IN (0, 1) USING MAX(val) GROUP BY j) p ORDER BY j
FROM x PIVOT (SUM(val) FOR j IN (0, 1, 2) GROUP BY i) ORDER BY i
UNPIVOT (SELECT i, SUM(val) AS a, MAX(val) AS b FROM x GROUP BY i) ON a, b INTO NAME n VALUE v ORDER BY i, n
SELECT * FROM x WHERE i = 1 ORDER BY j FETCH FIRST 2 ROWS ONLY
TABLE labels ORDER BY row
SELECT row, name FROM labels ORDER BY name DESC LIMIT 1
SELECT * FROM range(3) t(n) JOIN labels ON row = n ORDER BY n
SELECT n, val FROM generate_series(0, 10, 2) s(n) JOIN x ON x.i * 4 + x.j = s.n ORDER BY n
SELECT * FROM (SELECT i FROM x LIMIT 0) t
SELECT i FROM x LIMIT 0
SELECT COUNT(*) FROM (SELECT i FROM x LIMIT 5) t
SELECT COUNT(*) FROM (SELECT i, val FROM x ORDER BY val LIMIT 5) t
SELECT i, j, val FROM x TABLESAMPLE 100 PERCENT ORDER BY i, j
-- quoting, case, comments
SELECT "i", "J" FROM X WHERE "val" > 2 ORDER BY I, j
select I, sum(VAL) as S from X group by I order by s desc
SELECT i /* key */, val -- value
FROM x /* ; ORDER BY nothing */ WHERE j = 0 ORDER BY val DESC
SELECT "x"."i" FROM "x" WHERE "x".j = 0 ORDER BY "x"."i" DESC
SELECT 'it''s ' || i AS "quoted ""name""" FROM x WHERE j = 0 ORDER BY i
SELECT x.val AS "order" FROM x WHERE i = 0 ORDER BY "order"
SELECT t.s AS "group", 'x' || t.i AS k FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) AS t ORDER BY k
SELECT e.src AS i, x.i AS e FROM edges e JOIN x ON x.i = e.src AND x.j = 0 ORDER BY ALL
-- views
SELECT * FROM sums ORDER BY s DESC
SELECT s.i, l.name, s.s FROM sums s JOIN labels l ON l.row = s.i ORDER BY s.s
SELECT * FROM named ORDER BY ALL
SELECT n.name, SUM(n.val) AS s FROM named n GROUP BY n.name ORDER BY n.name
SELECT a.name FROM named a JOIN sums b ON a.i = b.i WHERE b.s > 3 ORDER BY ALL
SELECT COUNT(*) FROM named
WITH sums AS (SELECT 1 AS one) SELECT * FROM sums
-- no tensor at all
SELECT name, row FROM labels ORDER BY row
SELECT COUNT(*), MIN(name) FROM labels
SELECT src, COUNT(*) AS n FROM edges GROUP BY src ORDER BY src
SELECT DISTINCT dst FROM edges ORDER BY dst
SELECT a.src FROM edges a JOIN edges b ON a.dst = b.src ORDER BY ALL
SELECT day FROM days WHERE day > DATE '2026-01-01' ORDER BY day
SELECT upper('a') AS u
SELECT CURRENT_DATE IS NOT NULL AS c
-- mixtures
SELECT l.name, COALESCE(t.s, 0) AS s FROM labels l LEFT JOIN (SELECT x.i, SUM(x.val * y.val) AS s FROM x JOIN y ON x.j = y.j WHERE y.k = 1 GROUP BY x.i) t ON t.i = l.row ORDER BY s DESC, l.name
SELECT t.i, t.k, RANK() OVER (PARTITION BY t.k ORDER BY t.v DESC) AS r FROM (SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY x.i, y.k) t ORDER BY t.k, r
SELECT CASE WHEN s > 5 THEN 'high' ELSE 'low' END AS c, list(i ORDER BY i) AS rows FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) t GROUP BY c ORDER BY c
SELECT i, s, s - LAG(s) OVER (ORDER BY i) AS d FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) t ORDER BY i
SELECT a.name AS a, b.name AS b, g.v FROM (SELECT p.i AS i, q.i AS k, SUM(p.val * q.val) AS v FROM x p JOIN x q ON p.j = q.j GROUP BY p.i, q.i) g JOIN labels a ON a.row = g.i JOIN labels b ON b.row = g.k ORDER BY v DESC, a, b
SELECT x.i, COUNT(*) AS n FROM x WHERE x.j IN (SELECT src FROM edges) GROUP BY x.i ORDER BY x.i
SELECT src, (SELECT MAX(val) FROM x WHERE i = src) AS m, w FROM edges ORDER BY src, w
SELECT name FROM labels WHERE row IN (SELECT i FROM x GROUP BY i HAVING SUM(val) > 5) ORDER BY name
SELECT e.src, e.dst, a.s + b.s AS t FROM edges e JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) a ON a.i = e.src JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) b ON b.i = e.dst ORDER BY ALL
SELECT DISTINCT l.name FROM labels l JOIN x ON x.i = l.row WHERE x.val > 2 ORDER BY 1 DESC
SELECT i, val, CASE WHEN val > (SELECT AVG(val) FROM x) THEN 'above' ELSE 'below' END AS side FROM x WHERE j = 1 ORDER BY i
SELECT side, COUNT(*) AS n FROM (SELECT CASE WHEN val > 1.5 THEN 'above' ELSE 'below' END AS side FROM x) t GROUP BY side ORDER BY side
SELECT i, j, val FROM x WHERE (SELECT COUNT(*) FROM labels WHERE row = i) = 1 ORDER BY val DESC LIMIT 4
SELECT t.i, u.name FROM (SELECT i FROM x WHERE val > 2 ORDER BY val DESC LIMIT 3) t JOIN labels u ON u.row = t.i ORDER BY ALL
SELECT COUNT(*) FILTER (WHERE s > 4) AS many, string_agg(i::VARCHAR, '+' ORDER BY i) AS which FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) t
SELECT MIN(day) AS d, SUM(s) AS s FROM days JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) t ON t.i = days.n
SELECT row, name, EXISTS (SELECT 1 FROM y WHERE y.j = row AND y.val > 2) AS e FROM labels ORDER BY row
SELECT * FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) t, (SELECT COUNT(*) AS n FROM labels) c ORDER BY i
SELECT i, SUM(val) AS "sum of ""val""", 'k' || i AS k FROM x GROUP BY i ORDER BY "sum of ""val""" DESC
SELECT i // 2 AS half, SUM(val) AS s, 'h' || (i // 2) AS t FROM x GROUP BY i // 2 ORDER BY half
SELECT i, j, SUM(val) OVER (PARTITION BY i) AS s, NTH_VALUE(val, 2) OVER (PARTITION BY i ORDER BY j) AS second FROM x ORDER BY i, j
SELECT x.i, x.j FROM x JOIN (SELECT i, MAX(val) AS m FROM x GROUP BY i) b ON b.i = x.i AND b.m = x.val ORDER BY x.i
SELECT (SELECT list(name ORDER BY name) FROM labels) AS names, SUM(val) AS s FROM x
SELECT SUM(val) AS s FROM x HAVING SUM(val) > 100
SELECT SUM(val) AS s, 'all' AS what FROM x HAVING COUNT(*) > 3
SELECT AVG(val)::VARCHAR AS a FROM x WHERE i = 0
SELECT i, AVG(val) AS a FROM x GROUP BY i ORDER BY a LIMIT 1 OFFSET 1
SELECT j, MIN(val) AS lo, MAX(val) AS hi, hi - lo AS span FROM x GROUP BY j ORDER BY span DESC, j
SELECT u.k, list_sum(list(u.v)) AS s FROM (SELECT j AS k, val AS v FROM x UNION ALL SELECT k, val FROM y) u GROUP BY u.k ORDER BY u.k
SELECT i FROM x WHERE j = 0 UNION ALL (SELECT row FROM labels ORDER BY row DESC LIMIT 1) ORDER BY i
WITH t AS (SELECT i, SUM(val) AS s FROM x GROUP BY i), r AS (SELECT i, s, RANK() OVER (ORDER BY s DESC) AS r FROM t) SELECT l.name, r.r FROM r JOIN labels l ON l.row = r.i ORDER BY r.r
WITH t AS (SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY ALL) SELECT a.i, a.v, b.v AS w FROM t a JOIN t b ON a.i = b.i AND a.k = 0 AND b.k = 1 ORDER BY a.i DESC
WITH t AS (SELECT i, val FROM x WHERE val > 1) SELECT i, COUNT(*) AS n FROM t GROUP BY i UNION ALL SELECT 99, COUNT(*) FROM t ORDER BY i
SELECT i, k, v FROM (SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY x.i, y.k) t WHERE v = (SELECT MAX(v) FROM (SELECT x.i, y.k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY x.i, y.k) u) ORDER BY i
SELECT name, i, val FROM named WHERE val > (SELECT AVG(s) / 4 FROM sums) ORDER BY ALL
SELECT n.name, s.s FROM (SELECT DISTINCT name, i FROM named) n LEFT JOIN sums s USING (i) ORDER BY n.name
SELECT i AS x, val AS i FROM x WHERE j = 0 ORDER BY i DESC
SELECT i + j AS val, COUNT(*) AS n FROM x GROUP BY i + j ORDER BY val
SELECT val AS i, SUM(i) AS s FROM x WHERE val < 1 GROUP BY val ORDER BY i
SELECT i, SUM(val) AS i2 FROM x GROUP BY i ORDER BY i2, x.i
SELECT i % 2 AS i, SUM(val) AS s FROM x GROUP BY ALL ORDER BY s
SELECT MAX(i) AS i, 'm' AS m FROM x ORDER BY i
SELECT -i AS i, SUM(val) AS s, 'a' || SUM(val) AS t FROM x GROUP BY x.i ORDER BY i
SELECT -i AS j, upper('a' || x.j) AS u, SUM(val) AS s FROM x GROUP BY x.i, x.j ORDER BY j, u
SELECT i AS j, j AS i, 'z' || SUM(val) AS z FROM x GROUP BY x.i, x.j ORDER BY j, i LIMIT 5
SELECT -i AS i, 'z' || SUM(val) AS z FROM x GROUP BY i ORDER BY -i
SELECT i, 'z' || SUM(val) AS z FROM x GROUP BY i HAVING i > 0 ORDER BY i
SELECT -i AS i, 'z' || SUM(val) AS z FROM x GROUP BY x.i HAVING i > 0 ORDER BY z
SELECT -val AS val, j FROM x WHERE val > 1 ORDER BY val, abs(val) + j
SELECT i, j, (val > 1) = 1.0 AS t, (val > 1) IN (1, 0.0) AS u FROM x ORDER BY ALL
SELECT b.i, b.j, k FROM x AS b, range(b.i) AS r(k) ORDER BY ALL
