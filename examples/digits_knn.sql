-- Handwritten digits: each test image gets the label of the nearest training image.
-- Every third image is held back for the test; the other two thirds are what is known.

CREATE OR REPLACE TENSOR digits AS
SELECT d.i, d.p, d.val FROM 'examples/data/digits.npy' AS d(i, p);

CREATE OR REPLACE TENSOR labels AS
SELECT l.i, l.val FROM 'examples/data/labels.npy' AS l(i);

-- Squared distances: one sum over the 64 pixels for each of 599 × 1198 pairs of images.
CREATE OR REPLACE TENSOR distance AS
SELECT t.i, k.i AS j, SUM((t.val - k.val) * (t.val - k.val)) AS val
FROM digits AS t JOIN digits AS k USING (p)
WHERE t.i % 3 = 1 AND k.i % 3 <> 1
GROUP BY t.i, k.i;

CREATE OR REPLACE TENSOR nearest AS
SELECT d.i, ARG_MIN(d.j, d.val) AS val FROM distance AS d GROUP BY d.i;

-- The label of the nearest image: the neighbour's number is a value here, a key there.
CREATE OR REPLACE TENSOR guess AS
SELECT n.i, l.val FROM nearest AS n JOIN labels AS l ON l.i = n.val;

SELECT AVG(CASE WHEN guess.val = truth.val THEN 1 ELSE 0 END) AS accuracy
FROM guess JOIN labels AS truth USING (i);

-- The confusion matrix: which digit was taken for which, and how often.
SELECT truth.val AS truth, guess.val AS guess, COUNT(*) AS images
FROM guess JOIN labels AS truth USING (i)
GROUP BY truth.val, guess.val;
