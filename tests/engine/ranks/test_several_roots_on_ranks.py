"""Statements with several results on MPI ranks: one run of the ranks for all results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.messages import Command, Run
from tests.engine.ranks.conftest import Connected
from tests.engine.test_several_roots import (
    check_failures,
    check_interrupts,
    check_statements,
    check_training_steps,
    take_steps,
)
from tests.support.networks import FFNN_STEP, FFNN_STEP_BY_GRADIENT

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")


@pytest.mark.parametrize("step", [FFNN_STEP, FFNN_STEP_BY_GRADIENT], ids=["by hand", "by GRADIENT"])
def test_a_training_step_computes_shared_operations_once(connected: Connected, step: str) -> None:
    check_training_steps(connected(2), step)


def test_statements_give_the_results_of_one_site(connected: Connected) -> None:
    check_statements(connected(2))


def test_a_failed_statement_changes_nothing(connected: Connected) -> None:
    check_failures(connected(2))


def test_an_interrupted_statement_changes_nothing(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_interrupts(connected(2), monkeypatch)


def test_a_training_step_is_one_run_of_the_ranks(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = connected(2)
    take_steps(con, FFNN_STEP)  # the ranks get the program
    sent: list[Command] = []
    call = Cluster.call

    def counted(self: Cluster, commands: Mapping[int, Command], *more: Any) -> object:
        sent.extend(commands.values())
        return call(self, commands, *more)

    monkeypatch.setattr(Cluster, "call", counted)
    assert con.execute(FFNN_STEP).rowcount == 150
    assert [type(command) for command in sent] == [Run, Run]
