// kafkajs: creates a topic, produces, copies in a transaction, reads in a consumer group.
const { Kafka, logLevel } = require("kafkajs");

const TOPIC = "kafkajs";
const RECORDS = 300;

async function main(address) {
  const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: 3 }] });
  const producer = kafka.producer({ transactionalId: "kafkajs", idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (const kind of ["aborted", "committed"]) {
    const transaction = await producer.transaction();
    const messages = [...Array(RECORDS).keys()].map((i) => ({ key: String(i), value: `${kind} ${i}` }));
    await transaction.send({ topic: TOPIC, messages });
    await (kind === "aborted" ? transaction.abort() : transaction.commit());
  }
  const consumer = kafka.consumer({ groupId: "kafkajs" });
  await consumer.connect();
  await consumer.subscribe({ topics: [TOPIC], fromBeginning: true });
  const values = new Set();
  await new Promise((resolve, reject) => {
    const eachMessage = async ({ message }) => {
      if (values.add(message.value.toString()).size === RECORDS) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
  const offsets = await admin.fetchOffsets({ groupId: "kafkajs", topics: [TOPIC] });
  const committed = offsets[0].partitions.filter((each) => Number(each.offset) > 0).length;
  await Promise.all([producer.disconnect(), admin.disconnect()]);
  if ([...values].some((each) => !each.startsWith("committed"))) throw new Error("an aborted record was read");
  console.log(`${values.size} values, offsets of ${committed} partitions`);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
