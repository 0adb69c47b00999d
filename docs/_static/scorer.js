/* How results of the search are ordered, and named: with the part of the site that they belong to. */
const PARTS = { "tutorial": "Tutorial", "how-to": "How-to", "reference": "Reference",
  "explanation": "Explanation" };

var Scorer = {
  score: ([page, title, anchor, description, score, file]) => score,
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
