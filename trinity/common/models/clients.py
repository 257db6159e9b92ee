"""Where a model's OpenAI clients come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper


class ClientSource(Protocol):
    """Where OpenAI clients come from; see `trinity.explorer.api.endpoint`."""

    @property
    def address(self) -> str:
        """`http://host:port` of the endpoint."""

    def token(self, model: ModelWrapper) -> str:
        """Return the key that gives access to a model."""

    def client(self, model: ModelWrapper) -> Any:
        """Return a synchronous client of a model."""

    def async_client(self, model: ModelWrapper) -> Any:
        """Return an asynchronous client of a model."""

    def close(self) -> None:
        """Stop the endpoint."""
