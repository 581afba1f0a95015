"""Placeholder for the seam; see the contract."""


class StateTable: ...
