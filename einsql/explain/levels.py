"""The levels of a plan in its report: each language's text, structure and derivation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einsql.core.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelNode:
    """A node of a plan at one level.

    Attributes:
        id: The name of the node in the level's text.
        op: The operation.
        reads: The ids of the nodes that it reads.
        relation: The relation that it produces, as in the text.
        bytes_sent: The bytes that it sends between sites; None above the level `ia`.
    """

    id: str
    op: str
    reads: Sequence[str]
    relation: str
    bytes_sent: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorReport:
    """A cut of an operation.

    Attributes:
        partition: The number of parts of each label.
        copies: The number of groups of sites that compute the same.
        cost: The cost of the operation and of reading its operands and its result, while all
            other cuts stay as they are; in the unit of the setting `cost`.
    """

    partition: Mapping[str, int]
    copies: int
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceReport:
    """The choice of a cut; operations with equal choices share one.

    Attributes:
        nodes: The ids of the operations.
        viable: The number of vectors among which the search chose.
        taken: The vector that was taken.
        runners_up: The cheapest of the other vectors.
        others: The number of the other vectors, with the runners-up.
        rules: The names of the rules whose outcome the vector implies.
    """

    nodes: Sequence[str]
    viable: int
    taken: VectorReport
    runners_up: Sequence[VectorReport]
    others: int
    rules: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CutRuleReport:
    """An application of a product rule to the cuts.

    Attributes:
        nodes: The ids of the operations whose cut changed.
        old: The number of parts of each label before.
        new: The number of parts of each label after.
        bytes_before: The bytes that the placed program sent between sites before.
        bytes_after: The bytes that it sends after.
    """

    rule: str
    law: str
    nodes: Sequence[str]
    old: Mapping[str, int]
    new: Mapping[str, int]
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CutsReport:
    """The derivation of the tensor-relational plan from the graph.

    Attributes:
        source: The level that it starts from.
        strategy: The search that chose the cuts.
        unit: The unit of costs: the setting `cost`.
        cost: The cost of the cuts that were taken.
        strategies: The cost of each strategy that applies to the graph.
        choices: The choices, producers first.
        rules: The rules that changed a cut after the search.
    """

    source: str
    strategy: str
    unit: str
    cost: float
    strategies: Mapping[str, float]
    choices: Sequence[ChoiceReport]
    rules: Sequence[CutRuleReport]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleReport:
    """Consecutive applications of a rule.

    Attributes:
        fired: The number of applications.
        bytes_before: The bytes that the plan sent between sites before the first of them.
        bytes_after: The bytes that it sends after the last of them.
    """

    rule: str
    law: str
    fired: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RulesReport:
    """The derivation of the plan of the implementation algebra from the tensor-relational one.

    Attributes:
        source: The level that it starts from.
        considered: The number of plans among which the search chose.
        table1: The cost of the plan by Table 1 of the TRA paper, as one line.
        chosen: The cost of the plan that was chosen, as one line.
        rules: The rules that lead from the first plan to the chosen one.
    """

    source: str
    considered: int
    table1: str
    chosen: str
    rules: Sequence[RuleReport]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsReport:
    """The derivation of the program.

    Attributes:
        source: The level that it starts from.
        steps: For each node of this level the ids of the steps that it became.
    """

    source: str
    steps: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelReport:
    """A plan at one level.

    Attributes:
        text: The lines of the plan.
        nodes: The nodes of the plan, producers first.
        derivation: The derivation from the level above, under VERBOSE; None if there is none.
    """

    text: Sequence[str]
    nodes: Sequence[LevelNode]
    derivation: CutsReport | RulesReport | StepsReport | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelsReport:
    """The levels of a plan.

    Attributes:
        asked: The level of the option LEVEL.
        levels: The asked level; with VERBOSE every level of the plan, by name.
    """

    asked: str
    levels: Mapping[str, LevelReport]

    @property
    def shown(self) -> LevelReport:
        """The level of the option LEVEL."""
        return self.levels[self.asked]
