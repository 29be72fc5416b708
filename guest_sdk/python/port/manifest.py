# The frozen part of the language module: bytecode inside of the Wasm.
freeze("../frozen", opt=0)
