// sarama: creates a topic, produces idempotently and in transactions, reads in a consumer group, reads offsets back.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const topic, partitions, records = "sarama", 3, 300

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	addresses := []string{os.Args[1]}
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	admin, err := sarama.NewClusterAdmin(addresses, config)
	check(err)
	defer admin.Close()
	check(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
	produce(addresses, config)
	config.Producer.Transaction.ID = "sarama"
	produceInTransactions(addresses, config)
	read := &reader{values: map[string]int{}, end: cancel}
	group, err := sarama.NewConsumerGroup(addresses, "sarama", config)
	check(err)
	for ctx.Err() == nil {
		check(group.Consume(ctx, []string{topic}, read))
	}
	check(group.Close())
	if len(read.values) != 2*records {
		log.Fatalf("expected %d values, got %d", 2*records, len(read.values))
	}
	offsets, err := admin.ListConsumerGroupOffsets("sarama", map[string][]int32{topic: {0, 1, 2}})
	check(err)
	for _, block := range offsets.Blocks[topic] {
		if block.Err != sarama.ErrNoError || block.Offset <= 0 {
			log.Fatalf("no committed offset: %v", block)
		}
	}
	fmt.Println(len(read.values), "values")
}

func produce(addresses []string, config *sarama.Config) {
	producer, err := sarama.NewSyncProducer(addresses, config)
	check(err)
	check(producer.SendMessages(messages("plain")))
	check(producer.Close())
}

func produceInTransactions(addresses []string, config *sarama.Config) {
	producer, err := sarama.NewSyncProducer(addresses, config)
	check(err)
	check(producer.BeginTxn())
	check(producer.SendMessages(messages("aborted")))
	check(producer.AbortTxn())
	check(producer.BeginTxn())
	check(producer.SendMessages(messages("committed")))
	check(producer.CommitTxn())
	check(producer.Close())
}

func messages(kind string) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, records)
	for i := range made {
		text := sarama.StringEncoder(fmt.Sprintf("%s %d", kind, i))
		made[i] = &sarama.ProducerMessage{Topic: topic, Key: text, Value: text}
	}
	return made
}

type reader struct {
	lock   sync.Mutex
	values map[string]int
	end    func()
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// Partitions are read side by side.
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			session.MarkMessage(message, "")
			r.add(string(message.Value))
		case <-session.Context().Done():
			return nil
		}
	}
}

func (r *reader) add(value string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.values[value]++
	if len(r.values) == 2*records {
		r.end()
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
