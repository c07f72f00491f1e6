"""Make the data of the graph page from a Plan: groups, nodes, tensors, edges, Casts, and what a check found.

The data are plain lists and dictionaries, which the page holds as JSON. This room decides nothing and draws nothing.
"""
