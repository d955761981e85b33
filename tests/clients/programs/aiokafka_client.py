"""aiokafka: produces, commits and aborts transactions with a group's offsets, reads in a group. Asserts as it goes."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

TOPIC, RECORDS = "aiokafka", 200


async def main(address: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    await producer.start()
    await asyncio.gather(*[await producer.send(TOPIC, b"v%d" % i) for i in range(RECORDS)])
    await producer.stop()
    writer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="aiokafka")
    await writer.start()
    await run_transactions(writer)
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id="aiokafka",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    await consumer.start()
    read: list[bytes] = []
    while len(read) < RECORDS + 1:
        polled = await asyncio.wait_for(consumer.getmany(timeout_ms=500), 20)
        read += [each.value for messages in polled.values() for each in messages]
    assert sorted(read) == sorted([*(b"v%d" % i for i in range(RECORDS)), b"committed"])
    async with writer.transaction():
        positions = {each: await consumer.position(each) for each in consumer.assignment()}
        await writer.send_offsets_to_transaction(positions, "aiokafka")
    assert {each: await consumer.committed(each) for each in positions} == positions
    await consumer.stop()
    await writer.stop()
    print(len(read), "values")


async def run_transactions(writer: AIOKafkaProducer) -> None:
    async with writer.transaction():
        await writer.send(TOPIC, b"committed")
    try:
        async with writer.transaction():
            await writer.send_and_wait(TOPIC, b"aborted")
            raise ValueError
    except ValueError:
        pass


asyncio.run(main(sys.argv[1]))
