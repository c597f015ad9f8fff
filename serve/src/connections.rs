//! Connections: how many at a time, and how long a client may take to ask and to listen.
//!
//! A server that waits for its clients can be stopped by clients that wait too: with headers that never end, or with answers
//! that nobody reads. So each has its time, and there are so many places.

use std::io;
use std::net::TcpListener;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Connections at the same time; the next ones wait.
    pub connections: usize,
    /// Bytes of the headers of a request.
    pub header_bytes: usize,
    /// For the headers of a request to come, also from the end of the one before.
    pub headers: Duration,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// For a body to come.
    pub body: Duration,
    /// For a client to read what is sent to it, at all.
    pub listening: Duration,
    /// For a request to be answered.
    pub request: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connections: 512,
            header_bytes: 32 << 10,
            headers: Duration::from_secs(30),
            body_bytes: 1 << 20,
            body: Duration::from_secs(30),
            listening: Duration::from_secs(30),
            request: Duration::from_secs(600),
        }
    }
}

/// How long to wait after the system has refused a connection: it has no more files to open, perhaps.
const AFTER_AN_ERROR: Duration = Duration::from_millis(50);

/// Answers clients until `stop` is true; then those that are still to be answered, for at most `grace`.
///
/// # Errors
/// What the system says of the listener.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    patience: Patience,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(patience.connections));
    let all = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience.headers).max_header_size(patience.header_bytes);
    let mut stopped = pin!(async move { drop(stop.wait_for(|stop| *stop).await) });
    loop {
        let accept = async {
            // Nobody closes it.
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
        // Each piece of a stream is small, and should not wait for the next one.
        let _ = stream.set_nodelay(true);
        let stream = TokioIo::new(Patient { stream, most: patience.listening, waiting: None });
        let connection = all.watch(http.serve_connection(stream, TowerToHyperService::new(app.clone())));
        tokio::spawn(async move {
            // What is wrong with a connection is its client's affair.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(grace, all.shutdown()).await;
    Ok(())
}

/// A connection whose client has to go on reading.
struct Patient {
    stream: TcpStream,
    most: Duration,
    /// Since the client last took something, if there is something to take.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn wait<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(self.most)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wait(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wait(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
