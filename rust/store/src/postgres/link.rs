//! One connection to the server, used from whatever thread has it: its own little event loop runs while
//! somebody waits for an answer, so that no command hops to another thread.
//!
//! Statements are prepared once. What needs no answer is sent later, together with what does, so that a
//! command costs few round trips.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::address::PgAddress;
use super::failed;
use crate::error::{Result, StoreError};
use crate::store::Cell;

/// A statement that waits to be sent.
struct Later {
    statement: Statement,
    values: Vec<Cell>,
    /// How many rows it must write.
    rows: Option<u64>,
}

/// A connection.
pub(super) struct Link {
    runtime: Runtime,
    client: Client,
    statements: BTreeMap<String, Statement>,
    later: Vec<Later>,
    in_transaction: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link(..)")
    }
}

fn references(values: &[Cell]) -> Vec<&(dyn ToSql + Sync)> {
    let mut references: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(values.len());
    for value in values {
        references.push(value);
    }
    references
}

impl Link {
    /// Connects. `name` is what the server calls the connection.
    pub(super) fn open(address: &PgAddress, name: &str, durable: bool) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::io("cannot wait for the server", &error))?;
        let client = runtime.block_on(address.connect(name))?;
        let mut link =
            Self { runtime, client, statements: BTreeMap::new(), later: Vec::new(), in_transaction: false };
        let durable = if durable { "on" } else { "off" };
        link.batch(&format!(
            "SET search_path TO {}; SET synchronous_commit TO {durable}; SET statement_timeout TO '120s';
             SET lock_timeout TO '30s'; SET idle_in_transaction_session_timeout TO '30s';
             SET default_transaction_read_only TO off",
            address.schema
        ))?;
        Ok(link)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Statements without values, whose answers nobody reads.
    pub(super) fn batch(&mut self, sql: &str) -> Result<()> {
        self.runtime.block_on(self.client.batch_execute(sql)).map_err(|error| failed(&error))
    }

    pub(super) fn prepared(&mut self, sql: &str) -> Result<Statement> {
        if let Some(found) = self.statements.get(sql) {
            return Ok(found.clone());
        }
        let statement = self.runtime.block_on(self.client.prepare(sql)).map_err(|error| failed(&error))?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Begins a transaction, and reads the first row that it needs, in one round trip.
    pub(super) fn begin(&mut self, how: &str, first: &str) -> Result<Row> {
        if self.in_transaction {
            self.rollback()?; // somebody left in the middle of one
        }
        let statement = self.prepared(first)?;
        self.in_transaction = true;
        let (begun, row) = self.runtime.block_on(async {
            futures_util::future::join(self.client.batch_execute(how), self.client.query_one(&statement, &[]))
                .await
        });
        begun.map_err(|error| failed(&error))?;
        row.map_err(|error| failed(&error))
    }

    /// The same with another statement that the transaction is known to begin with.
    pub(super) fn begin_with(
        &mut self,
        how: &str,
        first: &str,
        next: &str,
        values: &[Cell],
    ) -> Result<(Row, Vec<Row>)> {
        if self.in_transaction {
            self.rollback()?;
        }
        let (first, next) = (self.prepared(first)?, self.prepared(next)?);
        self.in_transaction = true;
        let values = references(values);
        let (begun, row, rows) = self.runtime.block_on(async {
            let begun = self.client.batch_execute(how);
            futures_util::future::join3(
                begun,
                self.client.query_one(&first, &[]),
                self.client.query(&next, &values),
            )
            .await
        });
        begun.map_err(|error| failed(&error))?;
        Ok((row.map_err(|error| failed(&error))?, rows.map_err(|error| failed(&error))?))
    }

    pub(super) fn rollback(&mut self) -> Result<()> {
        self.later.clear();
        let done = self.batch("ROLLBACK");
        self.in_transaction = false;
        done
    }

    /// Sends what waits, and COMMIT. What waits was all written, or the transaction is not committed.
    pub(super) fn commit(&mut self) -> Result<()> {
        let checked = self.later.iter().any(|later| later.rows.is_some());
        if checked {
            self.flush()?;
        }
        let commit = self.prepared("COMMIT")?;
        self.later.push(Later { statement: commit, values: Vec::new(), rows: None });
        let done = self.flush();
        self.in_transaction = false;
        done
    }

    /// Sends a statement with the next one that needs an answer.
    pub(super) fn later(&mut self, sql: &str, values: Vec<Cell>, rows: Option<u64>) -> Result<()> {
        let statement = self.prepared(sql)?;
        self.later.push(Later { statement, values, rows });
        Ok(())
    }

    /// Sends everything that waits.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.later.is_empty() {
            return Ok(());
        }
        let later = std::mem::take(&mut self.later);
        let references: Vec<Vec<&(dyn ToSql + Sync)>> =
            later.iter().map(|one| references(&one.values)).collect();
        let sent =
            later.iter().zip(&references).map(|(one, values)| self.client.execute(&one.statement, values));
        let done = self.runtime.block_on(join_all(sent));
        for (one, done) in later.iter().zip(done) {
            let written = done.map_err(|error| failed(&error))?; // those after a failed one fail because of it
            if one.rows.is_some_and(|rows| rows != written) {
                return Err(StoreError::Conflict("a row was written by somebody else".to_owned()));
            }
        }
        Ok(())
    }

    /// The rows that a statement answers, after everything that waited.
    pub(super) fn query(&mut self, sql: &str, values: &[Cell]) -> Result<Vec<Row>> {
        let statement = self.prepared(sql)?;
        self.query_prepared(&statement, values)
    }

    pub(super) fn query_prepared(&mut self, statement: &Statement, values: &[Cell]) -> Result<Vec<Row>> {
        self.flush()?;
        let values = references(values);
        self.runtime.block_on(self.client.query(statement, &values)).map_err(|error| failed(&error))
    }

    /// How many rows a statement wrote, after everything that waited.
    pub(super) fn execute(&mut self, sql: &str, values: &[Cell]) -> Result<u64> {
        self.flush()?;
        let statement = self.prepared(sql)?;
        let values = references(values);
        self.runtime.block_on(self.client.execute(&statement, &values)).map_err(|error| failed(&error))
    }

    /// Lets the server know that nobody is there any more.
    pub(super) fn close(self) {
        let Self { runtime, client, .. } = self;
        drop(client);
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
        runtime.shutdown_background();
    }
}
