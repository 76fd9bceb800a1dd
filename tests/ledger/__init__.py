"""Random histories of tables, as PyIceberg and Spark write them, against a full recount of the ledger's counts."""
