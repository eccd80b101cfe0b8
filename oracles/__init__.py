"""Contracts and their oracles: `<operation>.py` holds the contract and the float64 definition."""

CONTRACTS = (
    *("rope_table", "pope_table", "query_scale", "rope", "rope_backward"),
    *("attention", "attention_backward", "attention_varlen", "attention_paged", "merge_attention"),
    "attention_varlen_backward",
    *("ring_attention", "ring_attention_backward"),
    *("rope_attention", "pope_attention", "pope_attention_backward"),
)
