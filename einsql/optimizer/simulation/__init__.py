"""Predicted costs of placed programs."""
