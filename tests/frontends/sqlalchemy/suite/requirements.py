"""What of SQLAlchemy's suite applies to einsql, and why the rest does not.

What is named neither here nor there is as SQLAlchemy assumes it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    """The requirements; OPEN and CLOSED fill them in."""

    def get_isolation_levels(self, config: Any) -> dict[str, Any]:
        """The levels there are."""
        return {"default": "SNAPSHOT", "supported": ["SNAPSHOT", "AUTOCOMMIT"]}


OPEN = """
    aggregate_order_by array_type autocommit autoincrement_without_sequence boolean_col_expressions
    comment_reflection comment_reflection_full_unicode computed_columns computed_columns_virtual
    create_or_replace_view create_table_as create_temp_table_as ctes ctes_on_dml
    ctes_with_update_delete ctes_with_values date_historic datetime_historic datetime_interval
    datetime_literals datetime_timezone delete_from except_ expression_server_defaults
    fetch_expression fetch_first fetch_no_order_by
    fetch_null_from_numeric foreign_key_constraint_reflection has_temp_table implicit_default_schema
    index_ddl_if_exists indexes_check_column_order temp_table_comment_reflection
    indexes_with_expressions infinity_floats intersect isolation_level json_type
    legacy_unconditional_json_extract
    mod_operator_as_percent_sign nullsordering order_by_label_with_expression percent_schema_names
    precision_numerics_enotation_small precision_numerics_many_significant_digits
    precision_numerics_retains_significant_digits primary_key_constraint_reflection
    reflect_indexes_with_expressions reflect_table_options regexp_match regexp_replace
    schema_reflection schemas sequences server_defaults sql_expression_limit_offset
    standard_cursor_sql supports_bitwise_and supports_bitwise_not supports_bitwise_or
    supports_bitwise_shift supports_bitwise_xor table_ddl_if_exists temp_table_names temporary_views
    time_timezone timestamp_microseconds tuple_in tuple_in_w_empty unicode_ddl update_from
    uuid_data_type views window_functions
""".split()  # noqa: SIM905 - a list of seventy lines would be no clearer
"""What SQLAlchemy assumes that a database has not, and einsql has."""

CLOSED = {
    "cast_precision_numerics_many_significant_digits": "numbers in JSON are DOUBLE in DuckDB",
    "check_constraint_reflection": "DuckDB keeps no names of constraints, which the tests compare",
    "implements_get_lastrowid": "a cursor has no lastrowid; INSERT … RETURNING gives the keys",
    "inline_check_constraint_reflection": "as check_constraint_reflection",
    "named_constraints": "DuckDB takes names of constraints and does not keep them",
    "implicitly_named_constraints": "as named_constraints",
    "on_update_cascade": "DuckDB has no cascades",
    "unique_constraint_reflection": "as check_constraint_reflection",
    "window_range": "the tests compare rows of SELECTs without ORDER BY",
    "window_range_numeric": "as window_range",
    "window_range_non_numeric": "as window_range",
    "recursive_fk_cascade": "DuckDB has no cascades",
}
"""What SQLAlchemy assumes that a database has, and why einsql has not."""

SKIPPED = {
    "test_string_length_reflection": "VARCHAR(n) is VARCHAR in DuckDB",
    "test_reflect_table_temp_table": "as above: the table has a VARCHAR(50)",
    "test_dialect_user_setting_is_restored": "there is no third isolation level to set",
    "test_truediv_divisor[numeric_many_decimals": "quotients are DOUBLE in DuckDB",
    "test_truediv_divisor[numeric_38_digit": "whole numbers beyond BIGINT are errors in einsql",
}
"""Tests that no requirement stands for, by how their names begin, and why they do not apply."""

rules: Any = exclusions  # it has no types


def _property(reason: str | None) -> property:
    def rule(_: object) -> object:
        # A new one each time: tests add to it.
        return rules.open() if reason is None else rules.skip_if(lambda config: True, reason)

    return property(rule)


for _name in OPEN:
    setattr(Requirements, _name, _property(None))
for _name, _reason in CLOSED.items():
    setattr(Requirements, _name, _property(_reason))
