"""The entry point: the ServerApp, its configuration, the ledger of answers, and the report."""
