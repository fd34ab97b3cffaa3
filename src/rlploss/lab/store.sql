-- The tables of a store. Rows of cells and networks are written once and kept.
CREATE TABLE cell (
    id INTEGER PRIMARY KEY, spec_hash TEXT NOT NULL, code_version TEXT NOT NULL, spec TEXT NOT NULL,
    provenance TEXT NOT NULL, created TEXT NOT NULL, seconds REAL NOT NULL,
    UNIQUE (spec_hash, code_version)
) STRICT;
CREATE TABLE network (
    id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cell (id), variant INTEGER NOT NULL,
    seed INTEGER NOT NULL, seconds REAL NOT NULL, curve TEXT NOT NULL, "values" TEXT NOT NULL,
    UNIQUE (cell, variant, seed)
) STRICT;
CREATE TABLE artifact (
    network INTEGER NOT NULL REFERENCES network (id), name TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (network, name)
) STRICT;
CREATE TABLE failure (
    spec_hash TEXT NOT NULL, code_version TEXT NOT NULL, reason TEXT NOT NULL, created TEXT NOT NULL,
    PRIMARY KEY (spec_hash, code_version)
) STRICT;
CREATE TABLE request (name TEXT PRIMARY KEY, options TEXT NOT NULL, created TEXT NOT NULL) STRICT;
CREATE TRIGGER cell_once BEFORE UPDATE ON cell BEGIN SELECT RAISE(ABORT, 'cells are written once'); END;
CREATE TRIGGER network_once BEFORE UPDATE ON network BEGIN SELECT RAISE(ABORT, 'networks are written once'); END;
CREATE TRIGGER cell_kept BEFORE DELETE ON cell BEGIN SELECT RAISE(ABORT, 'cells are kept'); END;
CREATE TRIGGER network_kept BEFORE DELETE ON network BEGIN SELECT RAISE(ABORT, 'networks are kept'); END;
