"""A plugin of dbt-duckdb: models of a dbt project write `FROM einsql('SELECT …')`."""

from __future__ import annotations

from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin

from einsql.core.quoting import literal
from einsql.errors import InterfaceError
from einsql.frontends.duckdb import Attached, attach

OPTIONS = frozenset({"element", "settings"})
"""The options of the plugin in a profile."""


class Plugin(BasePlugin):  # type: ignore[misc]  # dbt-duckdb has no types
    """Attaches einsql to each DuckDB connection of dbt.

    A profile names it as `module: einsql.frontends.dbt`, and may give `config` with `element`, the
    type of the elements of tiles, and `settings` of einsql.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Reads the options of the profile."""
        # dbt-duckdb adds DuckDB's settings of the profile to the options of each plugin.
        of_duckdb = (self.creds.settings if self.creds else None) or {}
        unknown = sorted(set(plugin_config) - OPTIONS - set(of_duckdb))
        if unknown:
            raise InterfaceError(
                f"The plugin einsql of dbt has no option {unknown[0]}",
                hint="The options are element and settings.",
            )
        settings = plugin_config.get("settings", {})
        if not isinstance(settings, dict) or not all(map(_is_setting, settings.items())):
            raise InterfaceError(
                "The settings of einsql in a profile of dbt are names with texts, numbers or "
                f"booleans, not {settings!r}",
                hint="As in config: {settings: {memory_limit: 2GB}}.",
            )
        self._element = str(plugin_config.get("element", "DOUBLE"))
        self._settings = settings

    def configure_connection(self, conn: Any) -> None:
        """Attaches the connection, which keeps the functions of tiles."""
        self._attach(conn)

    def configure_cursor(self, cursor: Any) -> None:
        """Attaches a cursor: TEMP macros belong to one connection, and models run on cursors."""
        self._attach(cursor)

    def _attach(self, connection: Any) -> Attached:
        attached = attach(connection, element=self._element)
        for name, setting in self._settings.items():
            attached.session.execute(f"SET {name} = {literal(str(setting))}")
        return attached


def _is_setting(setting: tuple[object, object]) -> bool:
    name, text = setting
    is_plain = isinstance(text, str | int | float) and "'" not in str(text)
    return isinstance(name, str) and name.isidentifier() and is_plain
