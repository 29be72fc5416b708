// Types with parameters, such as list[int], and unions, such as str | None: what annotations are made
// of. `__origin__` is the type, None for a union, and `__args__` the parameters. A call calls the type.

#include "py/objtuple.h"
#include "py/runtime.h"

typedef struct _alias_t {
    mp_obj_base_t base;
    mp_obj_t origin;
    mp_obj_t args;
} alias_t;

mp_obj_t symphony_alias_binary_op(mp_binary_op_t op, mp_obj_t lhs_in, mp_obj_t rhs_in);
mp_obj_t symphony_type_subscr(mp_obj_t self_in, mp_obj_t index, mp_obj_t value);

static void alias_attr(mp_obj_t self_in, qstr attr, mp_obj_t *dest) {
    alias_t *self = MP_OBJ_TO_PTR(self_in);
    if (dest[0] != MP_OBJ_NULL) {
        return;
    }
    if (attr == MP_QSTR___origin__) {
        dest[0] = self->origin;
    } else if (attr == MP_QSTR___args__) {
        dest[0] = self->args;
    }
}

static mp_obj_t alias_call(mp_obj_t self_in, size_t n_args, size_t n_kw, const mp_obj_t *args) {
    alias_t *self = MP_OBJ_TO_PTR(self_in);
    return mp_call_function_n_kw(self->origin, n_args, n_kw, args);
}

static void alias_print(const mp_print_t *print, mp_obj_t self_in, mp_print_kind_t kind) {
    alias_t *self = MP_OBJ_TO_PTR(self_in);
    mp_print_str(print, "<type ");
    mp_obj_print_helper(print, self->origin, PRINT_REPR);
    mp_print_str(print, " of ");
    mp_obj_print_helper(print, self->args, PRINT_REPR);
    mp_print_str(print, ">");
}

static MP_DEFINE_CONST_OBJ_TYPE(
    alias_type,
    MP_QSTR_GenericAlias,
    MP_TYPE_FLAG_NONE,
    print, alias_print,
    call, alias_call,
    binary_op, symphony_alias_binary_op,
    attr, alias_attr
    );

static mp_obj_t new_alias(mp_obj_t origin, mp_obj_t args) {
    alias_t *alias = mp_obj_malloc(alias_t, &alias_type);
    alias->origin = origin;
    alias->args = args;
    return MP_OBJ_FROM_PTR(alias);
}

mp_obj_t symphony_type_subscr(mp_obj_t self_in, mp_obj_t index, mp_obj_t value) {
    if (value != MP_OBJ_SENTINEL) {
        return MP_OBJ_NULL; // no item of a type can be set
    }
    mp_obj_t args = mp_obj_is_type(index, &mp_type_tuple) ? index : mp_obj_new_tuple(1, &index);
    return new_alias(self_in, args);
}

// Of types and aliases.
mp_obj_t symphony_alias_binary_op(mp_binary_op_t op, mp_obj_t lhs_in, mp_obj_t rhs_in) {
    if (op != MP_BINARY_OP_OR) {
        return MP_OBJ_NULL;
    }
    mp_obj_t sides[2] = {lhs_in, rhs_in};
    return new_alias(mp_const_none, mp_obj_new_tuple(2, sides));
}
