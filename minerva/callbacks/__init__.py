"""Callbacks: a user's own code at fixed points of a run."""

from minerva.callbacks.base import Callback, CallbackLike, CallbackList

__all__ = ["Callback", "CallbackLike", "CallbackList"]
