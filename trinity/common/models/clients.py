"""Where a model's OpenAI clients come from."""

from __future__ import annotations

from typing import Any, Protocol


class ClientSource(Protocol):
    """Where OpenAI clients come from; see `trinity.explorer.api.endpoint`.

    A model is a `ModelWrapper`.
    """

    @property
    def address(self) -> str:
        """`http://host:port` of the endpoint."""

    def token(self, model: Any) -> str:
        """Return the key that gives access to a model."""

    def client(self, model: Any) -> Any:
        """Return a synchronous client of a model."""

    def async_client(self, model: Any) -> Any:
        """Return an asynchronous client of a model."""

    def close(self) -> None:
        """Stop the endpoint."""
