/* levels(): the instruction sets that an extension can use here. Include it after LEVELS, which have names, and N_LEVELS. */
static PyObject *levels(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *names = PyTuple_New(N_LEVELS);
    for (int i = 0; names && i < N_LEVELS; i++) {
        PyObject *name = PyUnicode_FromString(LEVELS[i].name);
        if (!name)
            Py_CLEAR(names);
        else
            PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

#define LEVELS_METHOD {"levels", levels, METH_NOARGS, "levels() -> names of the instruction sets usable here, best last."}
