/* Names results of the search with the part of the site, and with the row of a table they lead to. */
const PARTS = { "tutorial": "Tutorial", "how-to": "How-to", "reference": "Reference",
  "explanation": "Explanation" };

var Scorer = {
  score: (result) => {
    const part = PARTS[result[0].split("/")[0]];
    const [, title, anchor, , score, , kind] = result;
    if (part && title !== part && !title.startsWith(part + ": ")) result[1] = `${part}: ${title}`;
    if (kind === "index") result[1] += ` > ${anchor.slice(1)}`;
    return score;
  },
  /* The scores of Sphinx. */
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
