; Calls a function of the driver once for each record of a table: a call from Python takes longer than
; what most of these functions do.
;
; The first two return for how many records the driver agreed: less than %count if it refused one.

; Enqueues kernels in order, by clEnqueueNDRangeKernel.
;
; A record is four words: the kernel, the number of dimensions, and the addresses of its global and
; local sizes.

define i64 @enqueue_all(i64 %enqueue, i64 %queue, i64 %count, ptr %records) {
entry:
  %function = inttoptr i64 %enqueue to ptr
  br label %head

head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %end

body:
  %first = shl i64 %i, 2
  %at_kernel = getelementptr i64, ptr %records, i64 %first
  %kernel = load i64, ptr %at_kernel, align 8
  %at_dims = getelementptr i64, ptr %at_kernel, i64 1
  %dims = load i64, ptr %at_dims, align 8
  %work_dim = trunc i64 %dims to i32
  %at_global = getelementptr i64, ptr %at_kernel, i64 2
  %global = load i64, ptr %at_global, align 8
  %at_local = getelementptr i64, ptr %at_kernel, i64 3
  %local = load i64, ptr %at_local, align 8
  %status = call i32 %function(i64 %queue, i64 %kernel, i32 %work_dim, i64 0, i64 %global, i64 %local, i32 0, i64 0, i64 0)
  %next = add i64 %i, 1
  %good = icmp eq i32 %status, 0
  br i1 %good, label %head, label %end

end:
  ret i64 %i
}

; Sets arguments of kernels, by clSetKernelArg.
;
; A record is four words: the kernel, the argument's position, its size in bytes, and the address of
; its value.

define i64 @set_all(i64 %set, i64 %count, ptr %records) {
entry:
  %function = inttoptr i64 %set to ptr
  br label %head

head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %end

body:
  %first = shl i64 %i, 2
  %at_kernel = getelementptr i64, ptr %records, i64 %first
  %kernel = load i64, ptr %at_kernel, align 8
  %at_position = getelementptr i64, ptr %at_kernel, i64 1
  %wide_position = load i64, ptr %at_position, align 8
  %position = trunc i64 %wide_position to i32
  %at_size = getelementptr i64, ptr %at_kernel, i64 2
  %size = load i64, ptr %at_size, align 8
  %at_value = getelementptr i64, ptr %at_kernel, i64 3
  %value = load i64, ptr %at_value, align 8
  %status = call i32 %function(i64 %kernel, i32 %position, i64 %size, i64 %value)
  %next = add i64 %i, 1
  %good = icmp eq i32 %status, 0
  br i1 %good, label %head, label %end

end:
  ret i64 %i
}

; Calls functions in order, each with five words.
;
; A record is six words: the function, and what it takes. What it returns is zero if it agreed. Returned
; are how many did, and, in the upper half, what the one behind them returned.

define i64 @call_all(i64 %count, ptr %records) {
entry:
  br label %head

head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %end

body:
  %first = mul i64 %i, 6
  %at_function = getelementptr i64, ptr %records, i64 %first
  %address = load i64, ptr %at_function, align 8
  %function = inttoptr i64 %address to ptr
  %at_a = getelementptr i64, ptr %at_function, i64 1
  %a = load i64, ptr %at_a, align 8
  %at_b = getelementptr i64, ptr %at_function, i64 2
  %b = load i64, ptr %at_b, align 8
  %at_c = getelementptr i64, ptr %at_function, i64 3
  %c = load i64, ptr %at_c, align 8
  %at_d = getelementptr i64, ptr %at_function, i64 4
  %d = load i64, ptr %at_d, align 8
  %at_e = getelementptr i64, ptr %at_function, i64 5
  %e = load i64, ptr %at_e, align 8
  %status = call i32 %function(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e)
  %next = add i64 %i, 1
  %good = icmp eq i32 %status, 0
  br i1 %good, label %head, label %refused

refused:
  %wide_status = zext i32 %status to i64
  %upper = shl i64 %wide_status, 32
  %both = or i64 %upper, %i
  ret i64 %both

end:
  ret i64 %i
}
