"""Requests: what runs, in which order, and what happens when a device fails.

`request_runner` is the entry. It binds the present assembly to the request (`bound_request`, with
`request_tensors` and `step_runner`), runs its steps by an executor, and checks what comes out
(`output_checks`, `nan_check`, `drift`). If a device fails or hangs (`submodel_failure`,
`call_timeout`), `failover` finds another assembly, and the request is repeated on that.
"""
