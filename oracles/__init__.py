"""Contracts and their oracles: `<operation>.py` holds the contract and the float64 definition."""

CONTRACTS = (
    *("rope_table", "pope_table", "query_scale", "rope"),
    *("attention", "attention_varlen", "attention_paged", "merge_attention"),
    *("rope_attention", "pope_attention"),
)
