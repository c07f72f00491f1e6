"""Tell what accelerators and execution providers compute: kernels, tables of targets, and the cost of a model.

``estimate.py`` counts operations and bytes from shapes alone, for any machine.
"""
