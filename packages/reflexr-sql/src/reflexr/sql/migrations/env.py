"""What Alembic runs to bring a database to a revision: on the connection that `reflexr.sql.migrate` hands it."""

from alembic import context

from reflexr.sql.schema import VERSION_TABLE
from reflexr.sql.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    # All of it or nothing, in the transaction of the connection.
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
