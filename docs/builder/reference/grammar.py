"""The page of the grammar."""

from __future__ import annotations

from docs.builder.reference.ebnf import sections
from docs.builder.reference.tables import NOTICE

_HEAD = """# Grammar

{notice}
einsql reads DuckDB's SQL and adds these statements and clauses. [The SQL language](sql.md) says
what they mean. `query`, `expression`, `condition`, `constant`, `name`, `type`, `text`, `number` and
`statement` are those of DuckDB; a `statement` may also be one of this page.

| notation | meaning |
| --- | --- |
| `KEYWORD` | a word, in upper or lower case |
| `'('` | literal punctuation |
| `[ x ]` | x or nothing |
| `{{ x }}` | x zero or more times |
| `x \\| y` | x or y |
| `( x )` | grouping |
"""


def page() -> str:
    """The text of grammar.md."""
    parts = [_HEAD.format(notice=NOTICE)]
    for section in sections():
        parts.append(f"\n## {section.title}\n")
        if section.prose:
            parts.append(f"\n{section.prose}\n")
        for p in section.productions:
            parts.append(f"\n```text\n{p.text}\n```\n")
            if p.examples:
                examples = "\n".join(e.statement for e in p.examples)
                parts.append(f"\n```sql\n{examples}\n```\n")
    return "".join(parts)
