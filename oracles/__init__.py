"""Contracts and their oracles: `<operation>.py` holds the contract and the float64 definition."""

CONTRACTS = ("rope_table", "rope")
