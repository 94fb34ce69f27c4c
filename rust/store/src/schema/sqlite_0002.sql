-- The tree over everything that was committed: each frame is a leaf, numbered by the sealer, never by its
-- position. `nodes` keeps the roots of complete subtrees, every eighth level, so that no proof needs many.
CREATE TABLE leaves (
    n    INTEGER PRIMARY KEY,
    pos  INTEGER NOT NULL UNIQUE REFERENCES frames (pos),
    hash BLOB NOT NULL
) STRICT;

CREATE TABLE nodes (
    level INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    hash  BLOB NOT NULL,
    PRIMARY KEY (level, n)
) STRICT, WITHOUT ROWID;
