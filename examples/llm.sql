-- SmolLM2-135M, a language model of LLaMA's architecture, from the weights to the logits.
-- examples/llm.py runs it; docs/how-to/llm.md explains it.
--
-- Keys: t position, v token, i element of the residual stream, f hidden unit; g group of
-- heads that share keys and values, r head in its group, d element of a head.

-- The weights of all layers, unpacked from the model's file: `*` is the number of the layer.

CREATE TENSOR embedding AS
SELECT w.v, w.i, w.val FROM read_tensor('model.gguf', 'token_embd.weight') AS w(v, i);

CREATE TENSOR last_gain AS
SELECT w.i, w.val FROM read_tensor('model.gguf', 'output_norm.weight') AS w(i);

CREATE TENSOR attention_gain AS
SELECT w.layer, w.i, w.val FROM read_tensor('model.gguf', 'blk.*.attn_norm.weight') AS w(layer, i);

CREATE TENSOR wq AS
SELECT w.layer, g.g, r.r, d.d, w.i, w.val
FROM read_tensor('model.gguf', 'blk.*.attn_q.weight') AS w(layer, o, i),
     range(3) AS g(g), range(3) AS r(r), range(64) AS d(d)
WHERE w.o = 192 * g.g + 64 * r.r + 2 * (d.d % 32) + d.d // 32;

CREATE TENSOR wk AS
SELECT w.layer, g.g, d.d, w.i, w.val
FROM read_tensor('model.gguf', 'blk.*.attn_k.weight') AS w(layer, o, i),
     range(3) AS g(g), range(64) AS d(d)
WHERE w.o = 64 * g.g + 2 * (d.d % 32) + d.d // 32;

CREATE TENSOR wv AS
SELECT w.layer, g.g, d.d, w.i, w.val
FROM read_tensor('model.gguf', 'blk.*.attn_v.weight') AS w(layer, o, i),
     range(3) AS g(g), range(64) AS d(d)
WHERE w.o = 64 * g.g + d.d;

CREATE TENSOR wo AS
SELECT w.layer, w.i, g.g, r.r, d.d, w.val
FROM read_tensor('model.gguf', 'blk.*.attn_output.weight') AS w(layer, i, o),
     range(3) AS g(g), range(3) AS r(r), range(64) AS d(d)
WHERE w.o = 192 * g.g + 64 * r.r + d.d;

CREATE TENSOR forward_gain AS
SELECT w.layer, w.i, w.val FROM read_tensor('model.gguf', 'blk.*.ffn_norm.weight') AS w(layer, i);

CREATE TENSOR w_gate AS
SELECT w.layer, w.f, w.i, w.val
FROM read_tensor('model.gguf', 'blk.*.ffn_gate.weight') AS w(layer, f, i);

CREATE TENSOR w_up AS
SELECT w.layer, w.f, w.i, w.val
FROM read_tensor('model.gguf', 'blk.*.ffn_up.weight') AS w(layer, f, i);

CREATE TENSOR w_down AS
SELECT w.layer, w.i, w.f, w.val
FROM read_tensor('model.gguf', 'blk.*.ffn_down.weight') AS w(layer, i, f);

-- Elements d and (d + 32) % 64 of a query or a key are turned together, at position t by the
-- angle t · 100000^(-p / 32) of their pair p.

CREATE TENSOR turn AS
SELECT a.t, d.d,
       CAST(COS(a.val) AS FLOAT) AS own,
       CAST(CASE WHEN d.d < 32 THEN -SIN(a.val) ELSE SIN(a.val) END AS FLOAT) AS other
FROM (SELECT t.t, p.p, t.t * POW(100000.0, -p.p / 32.0) AS val
      FROM range(2048) AS t(t), range(32) AS p(p)) AS a, range(64) AS d(d)
WHERE a.p = d.d % 32;

-- The parts of a layer.

CREATE MACRO rms_normed(x, gain) AS TABLE
SELECT x.t, x.i, x.val / SQRT(m.val + 0.00001) * gain.val AS val
FROM x JOIN (SELECT t, AVG(val * val) AS val FROM x GROUP BY t) AS m USING (t)
     JOIN gain USING (i);

-- Rows of keys and queries, turned; w says by how much at each position.

CREATE MACRO queries(y, n, w) AS TABLE
WITH raw AS (
  SELECT y.t, m.g, m.r, m.d, SUM(y.val * m.val) AS val
  FROM y JOIN wq AS m USING (i) WHERE m.layer = n GROUP BY y.t, m.g, m.r, m.d)
SELECT a.t, a.g, a.r, a.d, a.val * w.own + b.val * w.other AS val
FROM raw AS a JOIN raw AS b USING (t, g, r) JOIN w ON w.t = a.t AND w.d = a.d
WHERE b.d = (a.d + 32) % 64;

CREATE MACRO keys(y, n, w) AS TABLE
WITH raw AS (
  SELECT y.t, m.g, m.d, SUM(y.val * m.val) AS val
  FROM y JOIN wk AS m USING (i) WHERE m.layer = n GROUP BY y.t, m.g, m.d)
SELECT a.t, a.g, a.d, a.val * w.own + b.val * w.other AS val
FROM raw AS a JOIN raw AS b USING (t, g) JOIN w ON w.t = a.t AND w.d = a.d
WHERE b.d = (a.d + 32) % 64;

CREATE MACRO vals(y, n) AS TABLE
SELECT y.t, m.g, m.d, SUM(y.val * m.val) AS val
FROM y JOIN wv AS m USING (i) WHERE m.layer = n GROUP BY y.t, m.g, m.d;

-- Attention: each position to those up to its own (u ≤ t); the heads of a group share keys.

CREATE MACRO scores(q, k) AS TABLE
SELECT q.t, q.g, q.r, k.t AS u, SUM(q.val * k.val) / 8 AS val
FROM q JOIN k USING (g, d) WHERE k.t <= q.t GROUP BY q.t, q.g, q.r, k.t;

CREATE MACRO attended(score, v) AS TABLE
WITH greatest AS (SELECT t, g, r, MAX(val) AS val FROM score GROUP BY t, g, r),
weight AS (
  SELECT s.t, s.g, s.r, s.u, EXP(s.val - m.val) AS val
  FROM score AS s JOIN greatest AS m USING (t, g, r)),
total AS (SELECT t, g, r, SUM(val) AS val FROM weight GROUP BY t, g, r),
share AS (
  SELECT w.t, w.g, w.r, w.u, w.val / z.val AS val
  FROM weight AS w JOIN total AS z USING (t, g, r))
SELECT s.t, s.g, s.r, v.d, SUM(s.val * v.val) AS val
FROM share AS s JOIN v ON v.g = s.g AND v.t = s.u GROUP BY s.t, s.g, s.r, v.d;

CREATE MACRO gathered(x, a, n) AS TABLE
WITH o AS (
  SELECT a.t, w.i, SUM(a.val * w.val) AS val
  FROM a JOIN wo AS w USING (g, r, d) WHERE w.layer = n GROUP BY a.t, w.i)
SELECT x.t, x.i, x.val + o.val AS val FROM x JOIN o USING (t, i);

CREATE MACRO fed_forward(x, n) AS TABLE
WITH y AS (SELECT * FROM rms_normed(x, (SELECT i, val FROM forward_gain WHERE layer = n))),
a AS (
  SELECT y.t, w.f, SUM(y.val * w.val) AS val
  FROM y JOIN w_gate AS w USING (i) WHERE w.layer = n GROUP BY y.t, w.f),
b AS (
  SELECT y.t, w.f, SUM(y.val * w.val) AS val
  FROM y JOIN w_up AS w USING (i) WHERE w.layer = n GROUP BY y.t, w.f),
s AS (SELECT a.t, a.f, a.val * SIGMOID(a.val) * b.val AS val FROM a JOIN b USING (t, f)),
o AS (
  SELECT s.t, w.i, SUM(s.val * w.val) AS val
  FROM s JOIN w_down AS w USING (f) WHERE w.layer = n GROUP BY s.t, w.i)
SELECT x.t, x.i, x.val + o.val AS val FROM x JOIN o USING (t, i);

-- A layer, first what later positions will read of it, then the rest.

CREATE MACRO attentive(x, n) AS TABLE
SELECT * FROM rms_normed(x, (SELECT i, val FROM attention_gain WHERE layer = n));

CREATE MACRO remembered(x, n, w) AS TABLE
WITH y0 AS (SELECT * FROM attentive(x, n)),
k0 AS (SELECT * FROM keys(y0, n, w)),
v0 AS (SELECT * FROM vals(y0, n))
SELECT k.t, k.g, k.d, k.val AS key, v.val AS val FROM k0 AS k JOIN v0 AS v USING (t, g, d);

CREATE MACRO continued(x, n, w, k, v) AS TABLE
WITH y0 AS (SELECT * FROM attentive(x, n)),
q0 AS (SELECT * FROM queries(y0, n, w)),
s0 AS (SELECT * FROM scores(q0, k)),
a0 AS (SELECT * FROM attended(s0, v)),
z0 AS (SELECT * FROM gathered(x, a0, n))
SELECT * FROM fed_forward(z0, n);

CREATE MACRO layer(x, n) AS TABLE
WITH m0 AS (SELECT * FROM remembered(x, n, turn)),
k1 AS (SELECT t, g, d, key AS val FROM m0),
v1 AS (SELECT t, g, d, val FROM m0)
SELECT * FROM continued(x, n, turn, k1, v1);

-- One more position, of which x has the one row t = 0.

CREATE MACRO turn_at(position) AS TABLE
SELECT z.t, w.d, w.own, w.other FROM range(1) AS z(t), turn AS w WHERE w.t = position;

CREATE MACRO remembered_last(x, n, w) AS TABLE
WITH m0 AS (SELECT * FROM remembered(x, n, w))
SELECT g, d, MAX(key) AS key, MAX(val) AS val FROM m0 GROUP BY g, d;

-- Attention of the last position to those before it, in `past`, and to itself, in `own`.

CREATE MACRO attended_last(q, past, own) AS TABLE
WITH score AS (
  SELECT q.t, q.g, q.r, p.t AS u, SUM(q.val * p.key) / 8 AS val
  FROM q JOIN past AS p USING (g, d) GROUP BY q.t, q.g, q.r, p.t),
own_score AS (
  SELECT q.t, q.g, q.r, SUM(q.val * o.key) / 8 AS val
  FROM q JOIN own AS o USING (g, d) GROUP BY q.t, q.g, q.r),
past_greatest AS (SELECT t, g, r, MAX(val) AS val FROM score GROUP BY t, g, r),
greatest AS (
  SELECT a.t, a.g, a.r, GREATEST(a.val, b.val) AS val
  FROM past_greatest AS a JOIN own_score AS b USING (t, g, r)),
weight AS (
  SELECT s.t, s.g, s.r, s.u, EXP(s.val - m.val) AS val
  FROM score AS s JOIN greatest AS m USING (t, g, r)),
own_weight AS (
  SELECT s.t, s.g, s.r, EXP(s.val - m.val) AS val
  FROM own_score AS s JOIN greatest AS m USING (t, g, r)),
total AS (SELECT t, g, r, SUM(val) AS val FROM weight GROUP BY t, g, r),
a AS (
  SELECT w.t, w.g, w.r, p.d, SUM(w.val * p.val) AS val
  FROM weight AS w JOIN past AS p ON p.g = w.g AND p.t = w.u GROUP BY w.t, w.g, w.r, p.d)
SELECT a.t, a.g, a.r, a.d, (a.val + w.val * o.val) / (z.val + w.val) AS val
FROM a JOIN own_weight AS w USING (t, g, r) JOIN total AS z USING (t, g, r)
     JOIN own AS o ON o.g = a.g AND o.d = a.d;

CREATE MACRO next(x, n, w, past, own) AS TABLE
WITH y0 AS (SELECT * FROM attentive(x, n)),
q0 AS (SELECT * FROM queries(y0, n, w)),
a0 AS (SELECT * FROM attended_last(q0, past, own)),
z0 AS (SELECT * FROM gathered(x, a0, n))
SELECT * FROM fed_forward(z0, n);

CREATE MACRO embedded(tokens) AS TABLE
SELECT tokens.t, e.i, e.val FROM tokens JOIN embedding AS e ON e.v = tokens.val;

CREATE MACRO logits(x) AS TABLE
WITH y AS (SELECT * FROM rms_normed(x, last_gain))
SELECT y.t, e.v, SUM(y.val * e.val) AS val FROM y JOIN embedding AS e USING (i) GROUP BY y.t, e.v;
