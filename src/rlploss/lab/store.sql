-- The tables of a store. A row of `cell` holds a cell with all its networks; it is written once and kept.
CREATE TABLE cell (
    id INTEGER PRIMARY KEY, spec_hash TEXT NOT NULL, code_version TEXT NOT NULL, spec TEXT NOT NULL,
    networks TEXT NOT NULL, provenance TEXT NOT NULL, created TEXT NOT NULL, seconds REAL NOT NULL,
    UNIQUE (spec_hash, code_version)
) STRICT;
CREATE TABLE failure (
    code_version TEXT NOT NULL, spec_hash TEXT NOT NULL, reason TEXT NOT NULL, created TEXT NOT NULL,
    PRIMARY KEY (spec_hash, code_version)
) STRICT;
CREATE TABLE request (name TEXT PRIMARY KEY, options TEXT NOT NULL, created TEXT NOT NULL) STRICT;
-- `older` is a code version whose numbers `code_version` was found to give again, to the bit.
CREATE TABLE equal (
    code_version TEXT NOT NULL, older TEXT NOT NULL, created TEXT NOT NULL, PRIMARY KEY (code_version, older)
) STRICT;
CREATE TRIGGER cell_once BEFORE UPDATE ON cell BEGIN SELECT RAISE(ABORT, 'cells are written once'); END;
CREATE TRIGGER cell_kept BEFORE DELETE ON cell BEGIN SELECT RAISE(ABORT, 'cells are kept'); END;
CREATE TRIGGER cell_trained AFTER INSERT ON cell BEGIN
    DELETE FROM failure WHERE spec_hash = NEW.spec_hash AND code_version = NEW.code_version;
END;
