//! A client of the released crate `iggy`, as tests/compat/client_earlier.py and client_member.py are of the packages
//! of Python:
//!
//!     shardd-compat session ADDRESS STREAM OTHER...
//!     shardd-compat member ADDRESS STREAM TOPIC GROUP
//!
//! `session` logs in, creates STREAM, sends, polls and commits ("-": only logs in), then reads the streams of the
//! OTHERs (`NAME` or `NAME:ID:ID`), and prints what it saw as JSON. `member` prints what it is served until its
//! standard input ends.

use iggy::prelude::*;
use serde_json::{json, Value};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

const TOPIC: &str = "t";
const PAUSE: Duration = Duration::from_millis(5);

fn named(name: &str) -> Identifier {
    Identifier::named(name).expect("a name")
}

/// Nothing, or the text of the error.
fn outcome<T>(result: Result<T, IggyError>) -> Value {
    match result {
        Ok(_) => Value::Null,
        Err(problem) => json!(format!("{problem:?}")),
    }
}

fn texts(polled: &PolledMessages) -> Vec<(u64, String)> {
    let text = |each: &IggyMessage| String::from_utf8_lossy(&each.payload).into_owned();
    polled.messages.iter().map(|each| (each.header.offset, text(each))).collect()
}

async fn connected(address: &str) -> Result<IggyClient, IggyError> {
    let client = IggyClient::builder().with_tcp().with_server_address(address.to_string()).build()?;
    client.connect().await?;
    Ok(client)
}

async fn send(client: &IggyClient, stream: &Identifier, partition: u32) -> Result<(), IggyError> {
    let mut messages = Vec::new();
    for text in ["one".to_string(), "two".repeat(300), "three".to_string()] {
        messages.push(IggyMessage::builder().payload(text.into()).build()?);
    }
    let partitioning = Partitioning::partition_id(partition);
    client.send_messages(stream, &named(TOPIC), &partitioning, &mut messages).await.map(|_| ())
}

/// NEXT, committed by a request of its own or with the poll; or FIRST, and nothing is committed.
enum Commit {
    Stored,
    Automatic,
    Nothing,
}

async fn poll(client: &IggyClient, stream: &Identifier, count: u32, commit: Commit) -> Value {
    let consumer = Consumer::new(Identifier::numeric(1).expect("a number"));
    let (topic, automatic) = (named(TOPIC), matches!(commit, Commit::Automatic));
    let strategy = if matches!(commit, Commit::Nothing) { PollingStrategy::first() } else { PollingStrategy::next() };
    let polled = client.poll_messages(stream, &topic, Some(0), &consumer, &strategy, count, automatic).await;
    let found = match polled {
        Ok(polled) => texts(&polled),
        Err(problem) => return json!(format!("{problem:?}")),
    };
    if let (Commit::Stored, Some((offset, _))) = (&commit, found.last()) {
        let stored = client.store_consumer_offset(&consumer, stream, &topic, Some(0), *offset).await;
        let told = client.get_consumer_offset(&consumer, stream, &topic, Some(0)).await;
        match (stored, told) {
            (Ok(_), Ok(Some(info))) if info.stored_offset == *offset => {}
            other => return json!(format!("{other:?}")),
        }
    }
    json!(found)
}

async fn session(address: &str, stream: &str, others: &[String]) -> Result<Value, IggyError> {
    let client = connected(address).await?;
    let mut found = json!({"others": {}});
    found["wrong"] = outcome(client.login_user("iggy", "wrong").await);
    found["login"] = outcome(client.login_user("iggy", "iggy").await);
    if stream != "-" {
        let place = named(stream);
        let options = TopicCreateOptions { partitions_count: Some(2), ..Default::default() };
        let mut made = vec![outcome(client.create_stream(stream).await), outcome(client.create_stream(stream).await)];
        made.push(outcome(client.create_topic(&place, TOPIC, &options).await));
        found["create"] = json!(made);
        found["send"] = outcome(send(&client, &place, 0).await);
        found["nowhere"] = outcome(send(&client, &place, 99).await);
        found["polls"] = json!([
            poll(&client, &place, 2, Commit::Stored).await,
            poll(&client, &place, 2, Commit::Automatic).await,
            poll(&client, &place, 2, Commit::Automatic).await,
        ]);
    }
    for other in others {
        let name = other.split(':').next().unwrap_or(other);
        found["others"][name] = poll(&client, &named(name), 10, Commit::Nothing).await;
    }
    client.shutdown().await?;
    Ok(found)
}

async fn member(address: &str, stream: &str, topic: &str, group: &str) -> Result<(), IggyError> {
    let client = connected(address).await?;
    client.login_user("iggy", "iggy").await?;
    let (stream, topic, group) = (named(stream), named(topic), named(group));
    client.join_consumer_group(&stream, &topic, &group).await?;
    let over = Arc::new(AtomicBool::new(false));
    let heard = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        heard.store(true, Ordering::Relaxed);
    });
    let (consumer, next) = (Consumer::group(group.clone()), PollingStrategy::next());
    while !over.load(Ordering::Relaxed) {
        let polled = client.poll_messages(&stream, &topic, None, &consumer, &next, 5, true).await?;
        for (_, text) in texts(&polled) {
            println!("{text}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    client.leave_consumer_group(&stream, &topic, &group).await?;
    client.shutdown().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), IggyError> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    match given[0].as_str() {
        "session" => println!("{}", session(&given[1], &given[2], &given[3..]).await?),
        "member" => member(&given[1], &given[2], &given[3], &given[4]).await?,
        other => panic!("{other} is neither session nor member"),
    }
    Ok(())
}
