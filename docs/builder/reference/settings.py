"""The page of settings."""

from __future__ import annotations

from docs.builder.reference.tables import NOTICE, code, table
from einsql.core.settings import DESCRIPTIONS, OPTIONS, Settings, setting_text
from einsql.optimizer.decomposition.strategies import STRATEGIES

_HEAD = """# Settings

{notice}
`SET name = value` changes a setting of the session. `RESET name` restores its default. `SHOW name`
prints its value as SET takes it, and `SHOW SETTINGS` lists all of them.
`einsql.connect(config={{"sites": 4}})` and `einsql --set sites=4` set them when a session begins.
Settings of DuckDB are set in the same way. If both have a setting of one
name, einsql's is set.

```python
>>> import einsql
>>> con = einsql.connect(config={{"sites": 4}})
>>> _ = con.execute("SET memory_limit = '2GB'")
>>> con.execute("SHOW sites").fetchall(), con.execute("SHOW memory_limit").fetchall()
([('4',)], [('2000000000B',)])
>>> con.execute("RESET sites; SHOW sites").fetchall()
[('1',)]

```

{table}
`strategy` is one of these; text after a colon names labels:

{strategies}
Some settings have a page or a section that explains them:

- `sites`, `strategy`, `cost`: [sites](../explanation/sites.md), `mesh`:
  [meshes](../explanation/placement.md#meshes), `plan`: [plan files](../how-to/plan-files.md).
- `memory_limit`, `temp_directory`, `max_temp_directory_size`: [memory](../explanation/memory.md).
- `jit`: [tiers](../explanation/kernels.md#tiers). `fallback`: [tables and tensors](hybrid.md).
- `device`, `device_memory`, `matmul_precision`: [GPUs](../how-to/gpu.md).
- `disabled_rules`: the rules of [the implementation algebra](../explanation/ia.md#rules), and the
  rewrite rules that `EXPLAIN VERBOSE` names.
- The rates of a site and of the network:
  [the model of seconds](../explanation/sites.md#what-is-minimised). `CALIBRATE` measures and sets
  them.
- `enable_external_access`: [statements from others](../how-to/database.md#statements-from-others).

{options}{environment}"""
_OPTIONS = {
    "mpi": "the number of [MPI ranks](../how-to/mpi.md) to start, or `world` for those of the job",
    "mpiexec": "the command that starts ranks, with `{n}` for their number",
    "mpi_host": "the host name under which ranks reach this process",
}
_ENVIRONMENT = {
    "EINSQL_COST": "the default of `cost`; MPI ranks have `seconds`",
    "EINSQL_JIT": "the default of `jit`",
    "EINSQL_CACHE_DIR": "the folder of "
    "[compiled kernels](../explanation/kernels.md#the-cache-of-compiled-kernels)",
    "EINSQL_BLAS": "the [BLAS library](../explanation/kernels.md#mkl): `auto`, `numpy` or `mkl`",
    "EINSQL_HISTORY": "the file of the [console's](../how-to/console.md) history; empty for none",
    "NUMBA_NUM_THREADS": "the most [threads](../explanation/kernels.md#threads) of einsql's "
    "kernels in a process",
    "OPENBLAS_NUM_THREADS": "the most threads of NumPy's BLAS",
    "OMP_NUM_THREADS": "the threads of each [MPI rank](../how-to/mpi.md#on-one-node), else its "
    "share of the cores",
}


def page() -> str:
    """The text of settings.md."""
    defaults = Settings()
    rows = [
        (code(name), d.meaning, d.values, d.default or code(setting_text(defaults, name)))
        for name, d in {**DESCRIPTIONS, **OPTIONS}.items()
    ]
    listing = table(["setting", "meaning", "values", "default"], rows)
    strategies = table(
        ["strategy", "what it cuts"],
        ((code(s.name + f":{s.argument}" * s.needs_argument), s.law) for s in STRATEGIES.values()),
    )
    options = "## Options of a connection\n\n" + (
        "These are fixed when a session begins, by `config` of `einsql.connect` or `--set`:\n\n"
    )
    options += table(["option", "meaning"], ((code(n), text) for n, text in _OPTIONS.items()))
    variables = ((code(n), text) for n, text in _ENVIRONMENT.items())
    environment = "\n## Environment\n\n" + table(["variable", "meaning"], variables)
    return _HEAD.format(
        notice=NOTICE,
        table=listing,
        strategies=strategies,
        options=options,
        environment=environment,
    )
