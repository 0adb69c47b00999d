"""Access control: only the page of this process may send requests."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

BYTES = 32
"""The bytes of a code and of a token: 256 bits."""

TOKEN = "X-Einsql-Token"
"""The header of the token."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every answer: nothing inline, nothing foreign, no frames, no copies."""


class Access:
    """The address of the page, the code of its link and the token of its requests.

    A link works once: its code is exchanged for the token, which requests carry in a header.

    Attributes:
        host: The host and port that requests have to name.
    """

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self._code: str | None = None
        self._token = secrets.token_urlsafe(BYTES)

    @property
    def origin(self) -> str:
        """The origin of the page."""
        return f"http://{self.host}"

    def new_link(self) -> str:
        """The address of the page with a new code; links before it stop working."""
        self._code = secrets.token_urlsafe(BYTES)
        return f"{self.origin}/#{self._code}"

    def exchange(self, code: object) -> str | None:
        """The token for the code of a link, once; None for any other code."""
        expected = self._code
        if not isinstance(code, str) or expected is None or not _equal(code, expected):
            return None
        self._code = None
        return self._token

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Why a request does not come from the page of this process; None if it may.

        Args:
            method: The method of the request.
            headers: Its headers by lower-case name.
        """
        if headers.get("host") != self.host:
            return "the request names another host"
        origin = headers.get("origin")
        if origin != self.origin and (method == "POST" or origin is not None):
            return "the request comes from another page"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "the request comes from another site"
        return None

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """True if a request has the token."""
        return _equal(headers.get(TOKEN.lower(), ""), self._token)


def _equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode())
