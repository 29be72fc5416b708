# Leaving functions without setjmp: nlr_jump() sets this flag, tools/wasm_passes makes every function
# return at once while it is set, and nlr_try() clears it. A global is cheaper to test than memory.
	.globaltype	__stack_pointer, i32
	.globaltype	nlr_unwinding, i32
	.globl	nlr_unwinding
nlr_unwinding:

	.section	.text.nlr_set_unwinding,"",@
	.globl	nlr_set_unwinding
	.type	nlr_set_unwinding,@function
nlr_set_unwinding:
	.functype	nlr_set_unwinding (i32) -> ()
	local.get	0
	global.set	nlr_unwinding
	end_function

	.section	.text.nlr_stack,"",@
	.globl	nlr_stack
	.type	nlr_stack,@function
nlr_stack:
	.functype	nlr_stack () -> (i32)
	global.get	__stack_pointer
	end_function

	.section	.text.nlr_caught,"",@
	.globl	nlr_caught
	.type	nlr_caught,@function
# If the flag is set: clear it, take the stack back to where it was, and return 1.
nlr_caught:
	.functype	nlr_caught (i32) -> (i32)
	global.get	nlr_unwinding
	if	i32
	local.get	0
	global.set	__stack_pointer
	i32.const	0
	global.set	nlr_unwinding
	i32.const	1
	else
	i32.const	0
	end_if
	end_function
