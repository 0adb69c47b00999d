"""What of SQLAlchemy's suite applies to einsql, and why the rest does not."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

OPEN: dict[str, str] = {}


class Requirements(SuiteRequirements):
    """Said once for all tests."""


_OPEN = """
    create_table_as create_temp_table_as table_ddl_if_exists index_ddl_if_exists uuid_data_type
    standard_cursor_sql boolean_col_expressions nullsordering intersect except_ window_functions
    ctes ctes_with_update_delete ctes_with_values ctes_on_dml tuple_in
    tuple_in_w_empty views schemas sequences
    schema_reflection primary_key_constraint_reflection foreign_key_constraint_reflection
    comment_reflection comment_reflection_full_unicode
    temp_table_names has_temp_table temporary_views create_or_replace_view
    
    unicode_ddl datetime_interval datetime_literals datetime_timezone time_timezone
    timestamp_microseconds datetime_historic date_historic autocommit isolation_level
    array_type json_type precision_numerics_enotation_small precision_numerics_many_significant_digits
    server_defaults expression_server_defaults aggregate_order_by
    precision_numerics_retains_significant_digits infinity_floats update_from delete_from
    mod_operator_as_percent_sign percent_schema_names order_by_label_with_expression
    computed_columns computed_columns_virtual regexp_match regexp_replace
    reflect_table_options supports_bitwise_or supports_bitwise_and supports_bitwise_not
    supports_bitwise_xor supports_bitwise_shift materialized_views_off autoincrement_without_sequence
    implicit_default_schema unique_index_reflect_as_unique_constraints_off
    indexes_with_expressions reflect_indexes_with_expressions fetch_null_from_numeric
    sql_expression_limit_offset
    repeated_column_foreign_keys_off
""".split()

for _name in _OPEN:
    if not _name.endswith("_off"):
        setattr(Requirements, _name, property(lambda self: exclusions.open()))
