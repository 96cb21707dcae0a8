"""Costs: measured on the devices, kept on disk, estimated where nothing was measured.

`cost_table` collects the costs of one model: of its fusion groups (`timing`, `database`), of
starting a submodel (`launch_cost`) and of moving tensors (`link_cost`). `estimate` is a roofline
for what was not measured; `device_speed`, `product_probe`, `attention_probe` and `token_work` are
for decoders, whose layers are not run.
"""
