//! Connections: how many at a time, and how long a client can take to send its request and to read the answer.
//!
//! A client can stop a server that waits for it: with headers that never end, or by not reading its answer. So each
//! step has a time-out, and the number of connections is limited.

use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Connections at the same time; the next ones wait.
    pub connections: usize,
    pub header_bytes: usize,
    /// Time for the headers of a request to arrive, counted from the end of the request before.
    pub headers: Duration,
    pub body_bytes: usize,
    pub body: Duration,
    /// Time for a client to read anything of what is sent to it.
    pub write: Duration,
    /// Time for a request to be answered.
    pub request: Duration,
    /// Time for a viewer to see the pages, until another one may have its place.
    pub view_time: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits {
            connections: 512,
            header_bytes: 32 << 10,
            headers: Duration::from_secs(30),
            body_bytes: 1 << 20,
            body: Duration::from_secs(30),
            write: Duration::from_secs(30),
            request: Duration::from_secs(600),
            view_time: Duration::from_secs(60),
        }
    }
}

/// How long to wait after the system refused a connection, for instance because too many files are open.
const AFTER_AN_ERROR: Duration = Duration::from_millis(50);

/// Answers clients until `stop` is true, and then those under way for at most `grace`.
///
/// # Errors
/// The error of the listener.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    client_limits: ClientLimits,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(client_limits.connections));
    let all = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(client_limits.headers)
        .max_header_size(client_limits.header_bytes);
    let mut stopped = pin!(async move { drop(stop.wait_for(|stop| *stop).await) });
    loop {
        let accept = async {
            // It is never closed.
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut stopped => break,
            next = accept => next,
        };
        let Ok((stream, _)) = accepted else {
            sleep(AFTER_AN_ERROR).await;
            continue;
        };
        // Each piece of a stream is small and should not wait for the next one.
        let _ = stream.set_nodelay(true);
        // It fails when its client stops reading.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(client_limits.write));
        let stream = TokioIo::new(Box::pin(stream));
        let connection = all.watch(http.serve_connection(stream, TowerToHyperService::new(app.clone())));
        tokio::spawn(async move {
            // A broken connection concerns only its client.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(grace, all.shutdown()).await;
    Ok(())
}
