"""Compiling a placement to an executable: submodels, layouts, transfers.

`pipeline` runs the stages: `placer` (a device for each operation, and the submodels of that),
`submodel_compiler`, `layout_negotiation`, `transfer_plan`, and `assembler`, whose result is an
`executable.Assembly`. A device that fails loses its operations (`failures`), and the stages run
again.
"""
