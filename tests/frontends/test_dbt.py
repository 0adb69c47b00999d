"""A dbt project whose models read einsql('…'), built by dbt itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import einsql

pytest.importorskip("dbt.adapters.duckdb", reason="the plugin is of dbt-duckdb")

FILES = {
    "dbt_project.yml": "name: shop\nversion: '1.0'\nprofile: shop\n",
    "profiles.yml": """
shop:
  target: dev
  outputs:
    dev:
      type: duckdb
      path: shop.duckdb
      threads: 2
      settings: {preserve_insertion_order: true}
      plugins:
        - module: einsql.frontends.dbt
          config: {settings: {memory_limit: 1GB}}
""",
    "seeds/rating.csv": "person,film,stars\n0,0,5.5\n0,1,3\n1,0,4\n1,1,1\n1,2,2\n",
    "models/alike.sql": """
{{ config(materialized='table') }}
{% set rating = ref('rating').identifier %}
SELECT * FROM einsql('SELECT x.person AS a, y.person AS b, SUM(x.stars * y.stars) AS alike
  FROM {{ rating }} x JOIN {{ rating }} y USING (film) GROUP BY x.person, y.person')
""",
    "models/pair.sql": "SELECT a, b, alike FROM {{ ref('alike') }} WHERE a < b",
    "models/schema.yml": """
models:
  - name: alike
    columns: [{name: alike, data_tests: [not_null]}]
""",
}


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from dbt.cli.main import cli; cli()", "--no-use-colors", "build",
         "--profiles-dir", "."],
        cwd=folder, env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_models_read_einsql(project: Path) -> None:
    done = build(project)
    assert done.returncode == 0, done.stdout
    with duckdb.connect(str(project / "shop.duckdb")) as con:
        assert con.sql("FROM pair").fetchall() == [(0, 1, 25.0)]
        assert con.sql("SELECT sum(alike) FROM alike").fetchall() == [(110.25,)]


def test_a_mistake_in_a_query_is_shown_at_its_place(project: Path) -> None:
    (project / "models/pair.sql").write_text("FROM einsql('SELECT nme FROM rating')")
    done = build(project)
    assert done.returncode == 1
    assert "LINE 1: SELECT nme FROM rating" in done.stdout


@pytest.mark.parametrize(
    "options",
    [{"setting": {}}, {"settings": 0}, {"settings": {"sites": None}}, {"settings": {"a; b": 1}}],
)
def test_options_of_a_profile_are_checked(options: dict[str, object]) -> None:
    from einsql.frontends.dbt import Plugin

    with pytest.raises(einsql.InterfaceError):
        Plugin("einsql", options)
